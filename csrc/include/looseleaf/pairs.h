// bf16 in pairs: decode where the processor's vdpbf16ps is faster than widening (AMD Zen 4 and newer).
//
// A lane multiplies two bf16 with two others and adds both products to an fp32: QK takes pairs along the head dim as they
// lie in memory, PV takes pairs of tokens, made of two rows by a shift and a blend, so that accumulators are in the same
// unit order as in the widening kernels. Weights are rounded to bf16 for it, within the tolerance
// of bf16 on the grid. Speed: not measured by us, no AMD processor was at hand.
// Checked by tests/kernels/test_grid.py on processors with AVX512-BF16.
#pragma once

#include <immintrin.h>

namespace looseleaf::LOOSELEAF_ISA {
namespace {

inline __m512bh as_pairs(__m512i words) { return reinterpret_cast<__m512bh>(words); }
inline __m512i broadcast_pair(const BFloat* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}

// q rows as they are, padded with 0; row stride counts floats, of which the first half is used.
inline void load_query_pairs(const char* from, int64_t dim, float* out, int64_t stride) {
  std::memset(out, 0, static_cast<size_t>(stride) * 2);
  std::memcpy(out, from, static_cast<size_t>(dim) * 2);
}

template <int R, int N>
inline void dot_pair_tile(const float* q, int64_t q_stride, const char* const* rows, int64_t offset, int64_t dim,
                          float* scores, int64_t stride, Ahead ahead) {
  Vec sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = broadcast(0.0f);
  for (int64_t d = 0; d < dim; d += 32) {
    const __mmask32 mask = dim - d >= 32 ? ~__mmask32{0} : first_words(static_cast<int>(dim - d));
    if (ahead.rows != nullptr)
      for (int t = 0; t < N; ++t) prefetch(ahead.rows[t] + ahead.offset + 2 * d);
    for (int t = 0; t < N; ++t) {
      const __m512i key = _mm512_maskz_loadu_epi16(mask, rows[t] + offset + 2 * d);
      for (int r = 0; r < R; ++r)
        sums[r * N + t] = _mm512_dpbf16_ps(
            sums[r * N + t], as_pairs(_mm512_loadu_si512(reinterpret_cast<const BFloat*>(q + r * q_stride) + d)), as_pairs(key));
    }
  }
  alignas(64) float totals[16];
  sum_each(sums, totals);
  for (int r = 0; r < R; ++r) std::memcpy(scores + r * stride, totals + r * N, N * sizeof(float));
}

template <int R>
inline void dot_pair_rows(const float* q, int64_t q_stride, const char* const* rows, int64_t offset, int64_t dim,
                          int64_t count, float* scores, int64_t stride, Ahead ahead) {
  constexpr int N = R <= 2 ? 8 : 4;
  for (int64_t t = 0; t < count; t += N)
    dot_pair_tile<R, N>(q, q_stride, rows + t, offset, dim, scores + t, stride,
                        {ahead.rows == nullptr ? nullptr : ahead.rows + t, ahead.offset});
}

inline void dots_by_pairs(const float* q, int64_t q_stride, int64_t num_rows, const char* const* rows, int64_t offset,
                          int64_t dim, int64_t count, float* scores, int64_t stride, Ahead ahead) {
  for (int64_t r = 0; r < num_rows; r += 4) {
    const float* from = q + r * q_stride;
    float* to = scores + r * stride;
    switch (num_rows - r) {
      case 1:
        dot_pair_rows<1>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
        break;
      case 2:
        dot_pair_rows<2>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
        break;
      case 3:
        dot_pair_rows<3>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
        break;
      default:
        dot_pair_rows<4>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
    }
    ahead.rows = nullptr;
  }
}

// Rounds weights to bf16 where they stand, an even number of them; those past `count` become 0.
inline void round_weights(float* weights, int64_t count, int64_t padded) {
  for (int64_t t = 0; t < padded; t += 16) {
    const int64_t left = count - t;
    const __mmask16 mask = left >= 16 ? 0xFFFF : left <= 0 ? 0 : first_lanes(static_cast<int>(left));
    const Vec x = _mm512_maskz_loadu_ps(mask, weights + t);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<BFloat*>(weights) + t),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
}

// R rows x kUnits x 32 dims over pairs of tokens.
template <int R, int kUnits>
inline void accumulate_pair_strip(float* sums, int64_t sums_stride, const float* weights, int64_t weights_stride,
                                  const char* const* rows, int64_t offset, int64_t count, __mmask32 mask, Ahead ahead) {
  Vec c[R][2 * kUnits];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2 * kUnits; ++v) c[r][v] = load(sums + r * sums_stride + v * 16);
  for (int64_t t = 0; t < count; t += 2) {
    const int64_t second = t + 1 < count ? t + 1 : t;  // its weight is 0 where it repeats the first
    for (int u = 0; u < kUnits; ++u) {
      if (ahead.rows != nullptr) {
        prefetch(ahead.rows[t] + ahead.offset + 64 * u);
        prefetch(ahead.rows[second] + ahead.offset + 64 * u);
      }
      const __m512i a = _mm512_maskz_loadu_epi16(mask, rows[t] + offset + 64 * u);
      const __m512i b = _mm512_maskz_loadu_epi16(mask, rows[second] + offset + 64 * u);
      const __m512i even = _mm512_mask_blend_epi16(0xAAAAAAAAu, a, _mm512_slli_epi32(b, 16));
      const __m512i odd = _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(a, 16), b);
      for (int r = 0; r < R; ++r) {
        const __m512i weight = broadcast_pair(reinterpret_cast<const BFloat*>(weights + r * weights_stride) + t);
        c[r][2 * u] = _mm512_dpbf16_ps(c[r][2 * u], as_pairs(weight), as_pairs(even));
        c[r][2 * u + 1] = _mm512_dpbf16_ps(c[r][2 * u + 1], as_pairs(weight), as_pairs(odd));
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2 * kUnits; ++v) store(sums + r * sums_stride + v * 16, c[r][v]);
}

template <int R>
inline void accumulate_pair_rows(float* sums, int64_t sums_stride, const float* weights, int64_t weights_stride,
                                 const char* const* rows, int64_t offset, int64_t dim, int64_t count, Ahead ahead) {
  int64_t d = 0;
  for (; d + 64 <= dim; d += 64)
    accumulate_pair_strip<R, 2>(sums + d, sums_stride, weights, weights_stride, rows, offset + 2 * d, count, ~__mmask32{0},
                                {ahead.rows, ahead.offset + 2 * d});
  for (; d < dim; d += 32)
    accumulate_pair_strip<R, 1>(sums + d, sums_stride, weights, weights_stride, rows, offset + 2 * d, count,
                                dim - d >= 32 ? ~__mmask32{0} : first_words(static_cast<int>(dim - d)),
                                {ahead.rows, ahead.offset + 2 * d});
}

inline void accumulate_by_pairs(float* sums, int64_t sums_stride, int64_t num_rows, float* weights, int64_t weights_stride,
                                const char* const* rows, int64_t offset, int64_t dim, int64_t count, Ahead ahead) {
  for (int64_t r = 0; r < num_rows; ++r) round_weights(weights + r * weights_stride, count, count + 1);
  for (int64_t r = 0; r < num_rows; r += 4) {
    float* to = sums + r * sums_stride;
    const float* by = weights + r * weights_stride;
    switch (num_rows - r) {
      case 1:
        accumulate_pair_rows<1>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
        break;
      case 2:
        accumulate_pair_rows<2>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
        break;
      case 3:
        accumulate_pair_rows<3>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
        break;
      default:
        accumulate_pair_rows<4>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
    }
    ahead.rows = nullptr;
  }
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
