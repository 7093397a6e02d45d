// Elements of tensors: which ones there are, their bytes, and their exact scalar conversions from and to fp32.
//
// No instruction set is assumed and nothing here allocates. Conversions to a narrower type round to nearest even;
// those to 8 bits saturate. Checked by tests/kernels/test_moves.py against PyTorch's own conversions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Functions that CUDA kernels call too.
#if defined(__CUDACC__)
#define LOOSELEAF_EVERYWHERE __host__ __device__
#else
#define LOOSELEAF_EVERYWHERE
#endif

// Members and functions of types that several instruction sets share: never emitted on their own, so that the linker
// cannot take one set's copy for another's.
#define LOOSELEAF_INLINE LOOSELEAF_EVERYWHERE inline __attribute__((always_inline))
// For what several templates call: one copy in each set, or the library takes twice as long to compile.
#define LOOSELEAF_NOINLINE __attribute__((noinline))

namespace looseleaf {

enum class Element : int32_t { kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2, kInt8 };

// Storage types: distinct, so that templates can tell fp16 from bf16.
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

LOOSELEAF_INLINE int64_t bytes_of(Element element) {
  switch (element) {
    case Element::kFloat32:
      return 4;
    case Element::kFloat16:
    case Element::kBFloat16:
      return 2;
    default:
      return 1;
  }
}

LOOSELEAF_INLINE bool is_8bit(Element element) { return bytes_of(element) == 1; }

namespace {  // one copy for each instruction set: what the linker would merge must not contain AVX-512

LOOSELEAF_EVERYWHERE inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

LOOSELEAF_EVERYWHERE inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

[[maybe_unused]] LOOSELEAF_EVERYWHERE inline float to_float(BFloat value) {
  return float_from_bits(uint32_t{value.bits} << 16);
}

// fp16 has 5 exponent bits with bias 15: moved into place, the value is 2^112 too small. Infinity and NaN keep all ones.
[[maybe_unused]] LOOSELEAF_EVERYWHERE inline float to_float(Half value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t magnitude = uint32_t{value.bits & 0x7FFFu} << 13;
  const float scaled = float_from_bits(magnitude) * 0x1p112f;
  const uint32_t special = magnitude >= 0x0F800000u ? 0x7F800000u : 0u;
  return float_from_bits(bits_of(scaled) | special | sign);
}

[[maybe_unused]] LOOSELEAF_EVERYWHERE inline BFloat to_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

// Rounds to `mantissa_bits` with gradual underflow below 2^least_exponent: adding a power of two does the rounding.
LOOSELEAF_EVERYWHERE inline float round_to(float magnitude, int mantissa_bits, int least_exponent) {
  int exponent = static_cast<int>(bits_of(magnitude) >> 23) - 127;
  exponent = exponent < least_exponent ? least_exponent : exponent;
  const float rounder = float_from_bits(static_cast<uint32_t>(exponent + 23 - mantissa_bits + 127) << 23);
  const float shifted = magnitude + rounder;
  return shifted - rounder;
}

[[maybe_unused]] LOOSELEAF_EVERYWHERE inline Half to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = float_from_bits(bits & 0x7FFFFFFFu);
  if (!(magnitude == magnitude)) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7C00u)};
  const float rounded = round_to(magnitude, 10, -14);
  return {static_cast<uint16_t>(sign | (bits_of(rounded * 0x1p-112f) >> 13))};
}

// An 8-bit float with the given layout, without its sign: 4 exponent bits and bias 7, or 5 and 15.
template <int kMantissaBits, int kBias>
LOOSELEAF_EVERYWHERE uint8_t encode_float8(float value, float largest, uint8_t not_a_number) {
  const uint8_t sign = static_cast<uint8_t>((bits_of(value) >> 24) & 0x80u);
  float magnitude = float_from_bits(bits_of(value) & 0x7FFFFFFFu);
  if (!(magnitude == magnitude)) return static_cast<uint8_t>(sign | not_a_number);
  magnitude = magnitude > largest ? largest : magnitude;
  const float rounded = round_to(magnitude, kMantissaBits, 1 - kBias);
  if (rounded < float_from_bits(static_cast<uint32_t>(1 - kBias + 127) << 23)) {  // a multiple of the least step
    const float steps = rounded * float_from_bits(static_cast<uint32_t>(kBias - 1 + kMantissaBits + 127) << 23);
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(steps));
  }
  const uint32_t exponent_shift = static_cast<uint32_t>(127 - kBias) << 23;
  return static_cast<uint8_t>(sign | ((bits_of(rounded) - exponent_shift) >> (23 - kMantissaBits)));
}

template <int kMantissaBits, int kBias>
LOOSELEAF_EVERYWHERE float decode_float8(uint8_t byte) {
  const float sign = (byte & 0x80u) ? -1.0f : 1.0f;
  const uint32_t magnitude = byte & 0x7Fu;
  const uint32_t exponent = magnitude >> kMantissaBits;
  const float fraction = static_cast<float>(magnitude & ((1u << kMantissaBits) - 1u)) / (1u << kMantissaBits);
  if (exponent == 0) return sign * fraction * float_from_bits(static_cast<uint32_t>(1 - kBias + 127) << 23);
  return sign * (1.0f + fraction) * float_from_bits((exponent + 127u - kBias) << 23);
}

LOOSELEAF_EVERYWHERE inline float to_float_8bit(Element element, uint8_t byte) {
  switch (element) {
    case Element::kFloat8E4M3:
      return (byte & 0x7Fu) == 0x7Fu ? NAN : decode_float8<3, 7>(byte);
    case Element::kFloat8E5M2:
      return to_float(Half{static_cast<uint16_t>(uint16_t{byte} << 8)});
    default:
      return static_cast<float>(static_cast<int8_t>(byte));
  }
}

[[maybe_unused]] LOOSELEAF_EVERYWHERE inline uint8_t encode_8bit(Element element, float value) {
  switch (element) {
    case Element::kFloat8E4M3:
      return encode_float8<3, 7>(value, 448.0f, 0x7F);
    case Element::kFloat8E5M2:
      return encode_float8<2, 15>(value, 57344.0f, 0x7F);
    default: {
      const float rounded = std::nearbyint(value);
      const float bounded = rounded < -128.0f ? -128.0f : rounded > 127.0f ? 127.0f : rounded;
      return static_cast<uint8_t>(static_cast<int8_t>(bounded == bounded ? bounded : 0.0f));
    }
  }
}

// Elements stand at multiples of their size. nvcc has to be told, or it goes byte by byte.
[[maybe_unused]] LOOSELEAF_EVERYWHERE inline float load_element(Element element, const char* address) {
  float value;
  uint16_t bits;
  switch (element) {
    case Element::kFloat32:
      std::memcpy(&value, __builtin_assume_aligned(address, 4), 4);
      return value;
    case Element::kFloat16:
      std::memcpy(&bits, __builtin_assume_aligned(address, 2), 2);
      return to_float(Half{bits});
    case Element::kBFloat16:
      std::memcpy(&bits, __builtin_assume_aligned(address, 2), 2);
      return to_float(BFloat{bits});
    default:
      return to_float_8bit(element, static_cast<uint8_t>(*address));
  }
}

[[maybe_unused]] LOOSELEAF_EVERYWHERE inline void store_element(Element element, char* address, float value) {
  uint16_t bits;
  switch (element) {
    case Element::kFloat32:
      std::memcpy(__builtin_assume_aligned(address, 4), &value, 4);
      return;
    case Element::kFloat16:
      bits = to_half(value).bits;
      break;
    case Element::kBFloat16:
      bits = to_bfloat(value).bits;
      break;
    default:
      *address = static_cast<char>(encode_8bit(element, value));
      return;
  }
  std::memcpy(__builtin_assume_aligned(address, 2), &bits, 2);
}

}  // namespace
}  // namespace looseleaf
