// 8-bit cached rows to fp32 in AVX-512, 64 bytes at a time.
//
// int8: sign extension and a conversion, 2 operations for 16 values. float8 with VBMI: both bytes of a value's bf16 are
// looked up in 128-byte tables (one permutation each), the sign is taken over, and pairs are split as bf16 units are:
// 10 operations for 64 values. The bytes are put in an order first that makes the split give plain order.
// float8 without VBMI: the bits are moved to where fp16 has them, and the processor converts that.
// Checked by tests/kernels/test_unpack.py over all 256 bytes.
#pragma once

#include <immintrin.h>

#include "looseleaf/element.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

inline __mmask64 first_bytes(int64_t count) { return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1; }

// Calls convert(from, out) for each 64 bytes of each row; bytes past the row are 0.
template <class Convert>
inline void unpack_rows(const char* const* rows, int64_t offset, int64_t dim, int64_t count, float* out, int64_t stride,
                        const char* const* ahead_rows, int64_t ahead_offset, Convert convert) {
  for (int64_t t = 0; t < count; ++t, out += stride) {
    const char* from = rows[t] + offset;
    int64_t d = 0;
    for (; d + 64 <= dim; d += 64) {
      if (ahead_rows != nullptr) _mm_prefetch(ahead_rows[t] + ahead_offset + d, _MM_HINT_T1);
      convert(from + d, out + d);
    }
    if (d < dim) {
      alignas(64) char rest[64];
      _mm512_store_si512(rest, _mm512_maskz_loadu_epi8(first_bytes(dim - d), from + d));
      convert(rest, out + d);
    }
  }
}

inline void unpack_int8(const char* const* rows, int64_t offset, int64_t dim, int64_t count, float* out, int64_t stride,
                        const char* const* ahead_rows, int64_t ahead_offset) {
  unpack_rows(rows, offset, dim, count, out, stride, ahead_rows, ahead_offset, [](const char* from, float* to) {
    for (int i = 0; i < 4; ++i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
      _mm512_storeu_ps(to + 16 * i, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
    }
  });
}

#if defined(__AVX512VBMI__)

template <Element kElement>
struct Tables {  // of the bf16 of the 128 values without a sign: upper and lower byte
  alignas(64) uint8_t upper[128], lower[128], order[64];
  Tables() {
    for (int code = 0; code < 128; ++code) {
      const uint16_t bits = to_bfloat(to_float_8bit(kElement, static_cast<uint8_t>(code))).bits;
      upper[code] = static_cast<uint8_t>(bits >> 8);
      lower[code] = static_cast<uint8_t>(bits);
    }
    // Byte pairs of a lane of 16 become words 0..7 of the first and of the second vector; even words are one vector of
    // floats, odd words the next: word w of vector h is value (w % 2) * 16 + w / 2 of half h.
    for (int half = 0; half < 2; ++half)
      for (int word = 0; word < 32; ++word)
        order[word / 8 * 16 + half * 8 + word % 8] = static_cast<uint8_t>(half * 32 + word % 2 * 16 + word / 2);
  }
};

template <Element kElement>
void unpack_float8(const char* const* rows, int64_t offset, int64_t dim, int64_t count, float* out, int64_t stride,
                   const char* const* ahead_rows, int64_t ahead_offset) {
  static const Tables<kElement> tables;
  const __m512i upper0 = _mm512_load_si512(tables.upper), upper1 = _mm512_load_si512(tables.upper + 64);
  const __m512i lower0 = _mm512_load_si512(tables.lower), lower1 = _mm512_load_si512(tables.lower + 64);
  const __m512i order = _mm512_load_si512(tables.order);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80)), high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  unpack_rows(rows, offset, dim, count, out, stride, ahead_rows, ahead_offset, [&](const char* from, float* to) {
    const __m512i codes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(from));
    const __m512i low = _mm512_permutex2var_epi8(lower0, codes, lower1);
    // upper | (codes & sign)
    const __m512i up = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(upper0, codes, upper1), codes, sign, 0xF8);
    const __m512i pairs[2] = {_mm512_unpacklo_epi8(low, up), _mm512_unpackhi_epi8(low, up)};
    for (int i = 0; i < 2; ++i) {
      _mm512_storeu_si512(to + 32 * i, _mm512_slli_epi32(pairs[i], 16));
      _mm512_storeu_si512(to + 32 * i + 16, _mm512_and_si512(pairs[i], high));
    }
  });
}

#else

// The byte stands in the upper half of a word: e5m2 is then fp16 as it is; e4m3 has one exponent bit less, so it moves
// down by one, is 2^8 too small, and its all-ones pattern has to become NaN.
template <Element kElement>
void unpack_float8(const char* const* rows, int64_t offset, int64_t dim, int64_t count, float* out, int64_t stride,
                   const char* const* ahead_rows, int64_t ahead_offset) {
  const __m512 factor = _mm512_set1_ps(kElement == Element::kFloat8E4M3 ? 256.0f : 1.0f);
  unpack_rows(rows, offset, dim, count, out, stride, ahead_rows, ahead_offset, [&](const char* from, float* to) {
    for (int i = 0; i < 2; ++i) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
      __m512i words = _mm512_slli_epi16(_mm512_cvtepi8_epi16(bytes), kElement == Element::kFloat8E4M3 ? 7 : 8);
      if constexpr (kElement == Element::kFloat8E4M3) {
        const __m512i ones = _mm512_set1_epi16(0x3F80);
        words = _mm512_and_si512(words, _mm512_set1_epi16(static_cast<short>(0xBF80)));
        words = _mm512_mask_mov_epi16(words, _mm512_cmpeq_epi16_mask(_mm512_and_si512(words, ones), ones),
                                      _mm512_set1_epi16(0x7E00));
      }
      _mm512_storeu_ps(to + 32 * i, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(words)), factor));
      _mm512_storeu_ps(to + 32 * i + 16, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1)), factor));
    }
  });
}

#endif

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
