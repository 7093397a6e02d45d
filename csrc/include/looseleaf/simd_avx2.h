// Eight floats at a time: AVX2, FMA, F16C. See simd_portable.h for what each function means.
#pragma once

#include <immintrin.h>

#include "looseleaf/element.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

using Vec = __m256;
using Mask = __m256;
constexpr int kLanes = 8;
constexpr int kStripVectors = 2;  // 4 rows x 2 vectors = 8 accumulators of 16 registers
constexpr int kMaxDots = 8;
constexpr int kGemmRows = 6, kGemmVectors = 2;

inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec maximum(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec absolute(Vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline Vec nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec times_power_of_two(Vec x, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const Vec bit = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}
inline Vec counting() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
inline Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
inline bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
inline Vec select(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

inline float sum(Vec x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
inline float largest(Vec x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

// out[i] = sum of the lanes of in[i], i < 8.
inline void sum_each(const Vec* in, float* out) {
  const Vec a = _mm256_hadd_ps(_mm256_hadd_ps(in[0], in[1]), _mm256_hadd_ps(in[2], in[3]));
  const Vec b = _mm256_hadd_ps(_mm256_hadd_ps(in[4], in[5]), _mm256_hadd_ps(in[6], in[7]));
  store(out, _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
}

inline void transpose(Vec* v) {
  Vec t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  }
  Vec q[8];
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      q[4 * i + 2 * j] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + 2 + j], 0x44);
      q[4 * i + 2 * j + 1] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + 2 + j], 0xEE);
    }
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(q[i], q[4 + i], 0x20);
    v[4 + i] = _mm256_permute2f128_ps(q[i], q[4 + i], 0x31);
  }
}

template <>
struct Unit<float> {
  static constexpr int kSize = 8, kVectors = 1;
  static void load(const float* p, Vec* out) { out[0] = _mm256_loadu_ps(p); }
  static void store(float* p, const Vec* in) { _mm256_storeu_ps(p, in[0]); }
  static void load_part(const float* p, int count, Vec* out) { load_padded<float>(p, count, out); }
  static void store_part(float* p, int count, const Vec* in) { store_padded<float>(p, count, in); }
};

template <>
struct Unit<Half> {
  static constexpr int kSize = 16, kVectors = 2;
  static void load(const Half* p, Vec* out) {
    out[0] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    out[1] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  }
  static void store(Half* p, const Vec* in) {
    for (int i = 0; i < 2; ++i)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8 * i),
                       _mm256_cvtps_ph(in[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void load_part(const Half* p, int count, Vec* out) { load_padded<Half>(p, count, out); }
  static void store_part(Half* p, int count, const Vec* in) { store_padded<Half>(p, count, in); }
};

template <>
struct Unit<BFloat> {
  static constexpr int kSize = 16, kVectors = 2;
  static void load(const BFloat* p, Vec* out) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static __m256i rounded(Vec x) {  // to nearest even, in the upper half; NaN stays NaN
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return _mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7FC00000), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
  static void store(BFloat* p, const Vec* in) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_blend_epi16(_mm256_srli_epi32(rounded(in[0]), 16), rounded(in[1]), 0xAA));
  }
  static void load_part(const BFloat* p, int count, Vec* out) { load_padded<BFloat>(p, count, out); }
  static void store_part(BFloat* p, int count, const Vec* in) { store_padded<BFloat>(p, count, in); }
};

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
