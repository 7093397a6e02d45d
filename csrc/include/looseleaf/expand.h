// Elements of 8 bits to pairs of fp16 or bf16, four at a time and exactly: what tensor cores multiply.
//
// The bits of a small float are moved to where the larger format has them, which leaves the value too small by a power of
// two; one product mends that, for subnormal numbers too. Infinity and NaN are rare and mended apart.
#pragma once

#include "looseleaf/ptx.h"

namespace looseleaf::cuda {

// Storage types of caches beside float, Half and BFloat.
struct E4M3 {
  uint8_t bits;
};
struct E5M2 {
  uint8_t bits;
};

template <class T>
constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<Half> = true;

// Moves two bytes (0 and 1, or 2 and 3) to the upper ends of two halves, then their magnitudes down to where T has exponent
// and mantissa; `factor` is the power of two that is missing, twice.
template <class T>
LOOSELEAF_DEVICE uint32_t expand_floats(uint32_t bytes, int which, int shift, uint32_t factor) {
  const uint32_t spread = permute_bytes(bytes, 0u, which == 0 ? 0x1404u : 0x3424u);
  return multiply_pairs(T{}, (spread & 0x80008000u) | (spread & 0x7F007F00u) >> shift, factor);
}

// Writes infinity and NaN where the bytes have them: magnitudes from `least` on, of which only `infinite` is no NaN.
template <class T>
LOOSELEAF_DEVICE void mend_special(uint32_t bytes, uint32_t least, uint32_t infinite, uint32_t (&pairs)[2]) {
  constexpr uint32_t kInfinity = kIsHalf<T> ? 0x7C00u : 0x7F80u;
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = bytes >> (8 * i) & 0xFFu, magnitude = byte & 0x7Fu;
    if (magnitude < least) continue;
    const uint32_t half = kInfinity | (magnitude == infinite ? 0u : 0x7Fu) | (byte & 0x80u) << 8;
    pairs[i / 2] = i % 2 == 0 ? (pairs[i / 2] & 0xFFFF0000u) | half : (pairs[i / 2] & 0xFFFFu) | half << 16;
  }
}

template <class T>
LOOSELEAF_DEVICE void expand(E4M3, uint32_t bytes, uint32_t (&pairs)[2]) {
  for (int i = 0; i < 2; ++i)  // exponent bias 7; that of fp16 is 8 more, that of bf16 120 more
    pairs[i] = kIsHalf<T> ? expand_floats<T>(bytes, i, 1, 0x5C005C00u) : expand_floats<T>(bytes, i, 4, 0x7B807B80u);
  if (((bytes & 0x7F7F7F7Fu) + 0x01010101u & 0x80808080u) != 0) mend_special<T>(bytes, 0x7Fu, 0u, pairs);
}

template <class T>
LOOSELEAF_DEVICE void expand(E5M2, uint32_t bytes, uint32_t (&pairs)[2]) {
  if constexpr (kIsHalf<T>) {  // the upper byte of fp16
    pairs[0] = permute_bytes(bytes, 0u, 0x1404u);
    pairs[1] = permute_bytes(bytes, 0u, 0x3424u);
  } else {
    for (int i = 0; i < 2; ++i) pairs[i] = expand_floats<T>(bytes, i, 3, 0x77807780u);
    if (((bytes & 0x7C7C7C7Cu) + 0x04040404u & 0x80808080u) != 0) mend_special<T>(bytes, 0x7Cu, 0x7Cu, pairs);
  }
}

template <class T>
LOOSELEAF_DEVICE void expand(int8_t, uint32_t bytes, uint32_t (&pairs)[2]) {
  float values[4];
  for (int i = 0; i < 4; ++i)  // 2^23 + 128 + value, as the bits of fp32
    values[i] = float_from_bits(permute_bytes(bytes ^ 0x80808080u, 0x4B000000u, 0x7440u + static_cast<uint32_t>(i))) - 8388736.0f;
  pairs[0] = pack_pair(T{}, values[0], values[1]);
  pairs[1] = pack_pair(T{}, values[2], values[3]);
}

}  // namespace looseleaf::cuda
