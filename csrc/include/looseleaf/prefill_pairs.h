// Prefill in bf16 pairs: as prefill.h, with products of bf16 instead of fp32.
//
// K is packed as words of two neighboring dims, [panel of keys][dim / 2][key], V as words of two neighboring tokens,
// [panel of dims][token / 2][dim]: both are what vdpbf16ps and the AMX tiles take as their right-hand side. q stays bf16,
// weights are rounded to bf16. The product itself is the instruction set's: `Product::run` computes
// c[rows][columns] = or += a[rows][depth] x packed, rows a multiple of kRows, columns of kColumns, depth of 32.
// Measured with AMX, 2048 tokens causal, one core, busy machine, four runs: 1.26 to 1.32 x SDPA, once 0.84.
// Checked by tests/kernels/test_grid.py where the processor has the instructions.
#pragma once

#include "looseleaf/decode.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

constexpr int64_t kPairPanel = 64;

// Tokens [first, first + count) of a tile, count up to 16 at a time; 0 past the end.
inline void pack_key_pairs(const char* const* rows, int64_t offset, int64_t dim, int64_t first, int64_t count, int32_t* packed,
                           int64_t depth) {
  for (int64_t t = 0; t < count; t += 16) {
    int32_t* to = packed + (first + t) / kPairPanel * kPairPanel * (depth / 2) + (first + t) % kPairPanel;
    for (int64_t d = 0; d < depth; d += 32) {
      const int64_t left = dim - d;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : first_words(static_cast<int>(left));
      Vec block[16];
      for (int i = 0; i < 16; ++i)
        block[i] = t + i < count ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, rows[t + i] + offset + 2 * d))
                                 : _mm512_setzero_ps();
      transpose(block);
      for (int i = 0; i < 16; ++i) _mm512_storeu_ps(to + (d / 2 + i) * kPairPanel, block[i]);
    }
  }
}

// `first` is even; an odd last token is paired with 0, and so are all up to the next multiple of 32 (by the caller).
inline void pack_value_pairs(const char* const* rows, int64_t offset, int64_t dim, int64_t first, int64_t count,
                             int32_t* packed, int64_t tile_keys) {
  alignas(64) static constexpr uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t t = 0; t < count; t += 2) {
    for (int64_t d = 0; d < dim; d += 32) {
      const __mmask32 mask = dim - d >= 32 ? ~__mmask32{0} : first_words(static_cast<int>(dim - d));
      const __m512i a = _mm512_maskz_loadu_epi16(mask, rows[t] + offset + 2 * d);
      const __m512i b = t + 1 < count ? _mm512_maskz_loadu_epi16(mask, rows[t + 1] + offset + 2 * d) : _mm512_setzero_si512();
      int32_t* to = packed + d / kPairPanel * kPairPanel * (tile_keys / 2) + (first + t) / 2 * kPairPanel + d % kPairPanel;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// A result in plain order: accumulators here are columns of V as they lie, not units.
inline void store_plain_row(const AttendArguments& a, int64_t row, int64_t q_head, float* sums, const Normalized& n) {
  char* to = a.out + row * a.out_row_stride + q_head * a.out_head_stride;
  if (n.divisor == 0.0f) {
    std::memset(to, 0, static_cast<size_t>(a.v.dim) * 2);
  } else {
    divide_row(sums, padded_dim(a.v.dim), n.divisor, n.factor);
    for (int64_t d = 0; d < a.v.dim; d += 16) {
      const int64_t left = a.v.dim - d;
      _mm256_mask_storeu_epi16(to + 2 * d, left >= 16 ? 0xFFFF : first_lanes(static_cast<int>(left)),
                               reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(load(sums + d))));
    }
  }
  if (a.lse != nullptr) a.lse[row * a.lse_row_stride + q_head] = n.lse;
}

inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

template <class Product>
void prefill_by_pairs(const AttendArguments& a, const Tile& work, char* scratch, Unpack) {
  Product product;
  constexpr int64_t kRows = Product::kRows, kColumns = Product::kColumns;
  const int64_t group = a.group(), num_rows = work.count * group;
  const int64_t padded_rows = round_up(num_rows, kRows);
  const int64_t depth = round_up(a.k.dim, 32), v_stride = padded_dim(a.v.dim);
  float* scores = reinterpret_cast<float*>(scratch);
  float* sums = scores + padded_rows * kTileKeys;
  float* lane_sums = sums + padded_rows * v_stride;
  float* largest = lane_sums + padded_rows * kStateLanes;
  int32_t* keys = reinterpret_cast<int32_t*>(largest + round_up(padded_rows, 16));
  int32_t* values = keys + kTileKeys * depth / 2;
  BFloat* q = reinterpret_cast<BFloat*>(values + kTileKeys * v_stride / 2);
  BFloat* weights = q + padded_rows * depth;

  std::memset(q, 0, static_cast<size_t>(padded_rows * depth) * 2);
  for (int64_t row = 0; row < num_rows; ++row)
    std::memcpy(q + row * depth,
                a.q + (a.first_row(work.seq) + work.first + row / group) * a.q_row_stride +
                    (work.kv_head * group + row % group) * a.q_head_stride,
                static_cast<size_t>(a.k.dim) * 2);
  std::memset(sums, 0, static_cast<size_t>(padded_rows * (v_stride + kStateLanes)) * sizeof(float));
  for (int64_t row = 0; row < padded_rows; ++row) largest[row] = kLowest;

  const auto position_of = [&](int64_t row) {
    return a.position(work.seq, work.first + (row < num_rows ? row : num_rows - 1) / group);
  };
  const int64_t first_key = a.first_key(position_of(0));
  const int64_t end_key = a.end_key(work.seq, position_of(num_rows - 1));
  const int64_t k_offset = work.kv_head * a.k.head_stride, v_offset = work.kv_head * a.v.head_stride;
  for (int64_t first = first_key; first < end_key; first += kTileKeys) {
    const int64_t count = end_key - first < kTileKeys ? end_key - first : kTileKeys;
    const int64_t used_keys = round_up(count, 32);
    if (used_keys != count)  // pairs past the end count as 0, whatever was packed before
      for (int64_t d = 0; d < v_stride; d += kPairPanel)
        std::memset(values + d * (kTileKeys / 2) + count / 2 * kPairPanel, 0,
                    static_cast<size_t>((used_keys / 2 - count / 2) * kPairPanel) * 4);
    for (int64_t done = 0; done < count; done += kStepTokens) {
      Step step;
      locate(a, work.seq, first + done, first + count, &step);
      pack_key_pairs(step.k, k_offset, a.k.dim, done, step.count, keys, depth);
      pack_value_pairs(step.v, v_offset, a.v.dim, done, step.count, values, kTileKeys);
    }
    const auto seen = [&](int64_t row) {
      const int64_t end = a.end_key(work.seq, position_of(row + kRows - 1)) - first;
      return end < count ? end : count;
    };
    for (int64_t row = 0; row < padded_rows; row += kRows) {
      const int64_t used = seen(row);
      if (used <= 0) continue;
      for (int64_t key = 0; key < used; key += kColumns)
        product.template run<false>(scores + row * kTileKeys + key, kTileKeys, q + row * depth, depth,
                                    keys + key / kPairPanel * kPairPanel * (depth / 2) + key % kPairPanel, depth);
      const int64_t padded = round_up(used, 32);
      for (int64_t r = row; r < row + kRows; ++r) {
        BFloat* to = weights + r * kTileKeys;
        if (r >= num_rows) {
          std::memset(to, 0, static_cast<size_t>(padded) * 2);
          continue;
        }
        const int64_t position = position_of(r), end = a.end_key(work.seq, position) - first;
        float* sum_row = sums + r * v_stride;
        weigh_row(scores + r * kTileKeys, used, a.first_key(position) - first, end < count ? end : count,
                  static_cast<float>(position - first), row_options(a, work.kv_head * group + r % group, work.kv_head),
                  largest + r, lane_sums + r * kStateLanes, sum_row, v_stride);
        for (int64_t t = 0; t < padded; t += 16) {
          const int64_t left = used - t;
          const __mmask16 mask = left >= 16 ? 0xFFFF : left <= 0 ? 0 : first_lanes(static_cast<int>(left));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + t), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(
                                                                      _mm512_maskz_loadu_ps(mask, scores + r * kTileKeys + t))));
        }
      }
      for (int64_t d = 0; d < a.v.dim; d += kColumns)
        product.template run<true>(sums + row * v_stride + d, v_stride, weights + row * kTileKeys, kTileKeys,
                                   values + d / kPairPanel * kPairPanel * (kTileKeys / 2) + d % kPairPanel, padded);
    }
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t head = work.kv_head * group + row % group;
    const Normalized n = normalize(largest[row], sum(load(lane_sums + row * kStateLanes)),
                                   a.sinks == nullptr ? nullptr : a.sinks + head);
    store_plain_row(a, a.first_row(work.seq) + work.first + row / group, head, sums + row * v_stride, n);
  }
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
