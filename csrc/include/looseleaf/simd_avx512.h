// Sixteen floats at a time: AVX-512 F, BW, DQ, VL. See simd_portable.h for what each function means.
#pragma once

#include <immintrin.h>

#include "looseleaf/element.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

using Vec = __m512;
using Mask = __mmask16;
constexpr int kLanes = 16;
constexpr int kStripVectors = 4;  // 4 rows x 4 vectors = 16 accumulators of 32 registers
constexpr int kMaxDots = 16;
constexpr int kGemmRows = 6, kGemmVectors = 4;

inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// The second operand where either is NaN, so a NaN in b survives.
inline Vec maximum(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec absolute(Vec x) { return _mm512_abs_ps(x); }
inline Vec nearest(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec times_power_of_two(Vec x, Vec n) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-127.0f), _CMP_NEQ_UQ), x, n);
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const __m512i kSign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(kSign, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xCA));
}
inline Vec counting() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask both(Mask a, Mask b) { return a & b; }
inline bool any(Mask m) { return m != 0; }
inline Vec select(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
inline float sum(Vec x) { return _mm512_reduce_add_ps(x); }
inline float largest(Vec x) { return _mm512_reduce_max_ps(x); }
inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

// out[i] = sum of the lanes of in[i], i < 16.
inline void sum_each(const Vec* in, float* out) {
  Vec pair[8], quad[4];
  for (int i = 0; i < 8; ++i)
    pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(in[2 * i], in[2 * i + 1]), _mm512_unpackhi_ps(in[2 * i], in[2 * i + 1]));
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pair[2 * i]), b = _mm512_castps_pd(pair[2 * i + 1]);
    quad[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const Vec low = _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x44), _mm512_shuffle_f32x4(quad[0], quad[1], 0xEE));
  const Vec high = _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x44), _mm512_shuffle_f32x4(quad[2], quad[3], 0xEE));
  store(out, _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD)));
}

// Rows become columns.
inline void transpose(Vec* v) {
  Vec t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(t[4 * i + j]), b = _mm512_castps_pd(t[4 * i + 2 + j]);
      v[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      v[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_f32x4(v[c], v[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_f32x4(v[c], v[4 + c], 0xDD);
    t[8 + c] = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0xDD);
  }
  for (int c = 0; c < 4; ++c) {
    v[c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0x88);
    v[8 + c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0xDD);
    v[4 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0x88);
    v[12 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0xDD);
  }
}

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
inline __mmask32 first_words(int count) { return static_cast<__mmask32>((uint64_t{1} << count) - 1u); }

template <>
struct Unit<float> {
  static constexpr int kSize = 16, kVectors = 1;
  static void load(const float* p, Vec* out) { out[0] = _mm512_loadu_ps(p); }
  static void load_part(const float* p, int count, Vec* out) { out[0] = _mm512_maskz_loadu_ps(first_lanes(count), p); }
  static void store(float* p, const Vec* in) { _mm512_storeu_ps(p, in[0]); }
  static void store_part(float* p, int count, const Vec* in) { _mm512_mask_storeu_ps(p, first_lanes(count), in[0]); }
};

template <>
struct Unit<Half> {
  static constexpr int kSize = 32, kVectors = 2;
  static void load(const Half* p, Vec* out) {
    out[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    out[1] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16)));
  }
  static void split(__m512i words, Vec* out) {
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(words));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1));
  }
  static void load_part(const Half* p, int count, Vec* out) { split(_mm512_maskz_loadu_epi16(first_words(count), p), out); }
  static __m512i join(const Vec* in) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(in[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)),
                              _mm512_cvtps_ph(in[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), 1);
  }
  static void store(Half* p, const Vec* in) { _mm512_storeu_si512(p, join(in)); }
  static void store_part(Half* p, int count, const Vec* in) { _mm512_mask_storeu_epi16(p, first_words(count), join(in)); }
};

// A pair of bf16 in 32 bits: the even one is its lower half, the odd one its upper. No shuffle either way.
template <>
struct Unit<BFloat> {
  static constexpr int kSize = 32, kVectors = 2;
  static void split(__m512i pairs, Vec* out) {
    out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    out[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static __m512i rounded(Vec x) {  // to nearest even, in the upper half; NaN stays NaN
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_mask_mov_epi32(sum, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7FC00000));
  }
  static __m512i join(const Vec* in) {
    return _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(rounded(in[0]), 16), rounded(in[1]));
  }
  static void load(const BFloat* p, Vec* out) { split(_mm512_loadu_si512(p), out); }
  static void load_part(const BFloat* p, int count, Vec* out) { split(_mm512_maskz_loadu_epi16(first_words(count), p), out); }
  static void store(BFloat* p, const Vec* in) { _mm512_storeu_si512(p, join(in)); }
  static void store_part(BFloat* p, int count, const Vec* in) { _mm512_mask_storeu_epi16(p, first_words(count), join(in)); }
};

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
