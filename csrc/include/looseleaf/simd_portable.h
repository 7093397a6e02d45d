// Four floats at a time in the compiler's own vectors: SSE2, NEON or plain code. Also says what the others must offer.
//
// A unit is the elements of one load: `Unit<T>::load` makes kVectors vectors of floats of them, in an order of its own
// ("unit order": bf16 gives the even ones, then the odd ones), and `store` undoes it. All rows of floats in scratch
// memory that stand for q, an accumulator or a packed key are in unit order of the cache's element.
// `load_part` reads the first `count` elements only and gives 0 for the rest.
#pragma once

#include "looseleaf/element.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(16)));
typedef uint32_t Bits __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kStripVectors = 2;  // vectors of an accumulator row that are kept in registers
constexpr int kMaxDots = 8;       // dot products that are kept in registers
constexpr int kGemmRows = 4, kGemmVectors = 2;

inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Vec load(const float* p) {
  Vec x;
  std::memcpy(&x, p, 16);
  return x;
}
inline void store(float* p, Vec x) { std::memcpy(p, &x, 16); }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec select(Mask m, Vec yes, Vec no) { return m ? yes : no; }
// The second operand where either is NaN, so a NaN in b survives.
inline Vec maximum(Vec a, Vec b) { return select(a > b, a, b); }
inline Vec absolute(Vec x) { return reinterpret_cast<Vec>(reinterpret_cast<Bits>(x) & 0x7FFFFFFFu); }
// To the nearest whole number, |x| < 2^22: the constant leaves no bits for a fraction.
inline Vec nearest(Vec x) {
  const Vec shifted = x + 0x1.8p23f;
  return shifted - 0x1.8p23f;
}
// x * 2^n for whole n in [-127, 127]; 0 for n = -127.
inline Vec times_power_of_two(Vec x, Vec n) {
  const Mask exponent = __builtin_convertvector(n, Mask) + 127;
  return x * reinterpret_cast<Vec>(exponent << 23);
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  return reinterpret_cast<Vec>((reinterpret_cast<Bits>(sign) & 0x80000000u) |
                               (reinterpret_cast<Bits>(magnitude) & 0x7FFFFFFFu));
}
inline Vec counting() { return Vec{0, 1, 2, 3}; }
inline Mask less(Vec a, Vec b) { return a < b; }
inline Mask both(Mask a, Mask b) { return a & b; }
inline bool any(Mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
inline float sum(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float largest(Vec x) {
  float value = x[0];
  for (int i = 1; i < kLanes; ++i) value = x[i] > value ? x[i] : value;
  return value;
}
inline void prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }

// Rows become columns.
inline void transpose(Vec* v) {
  const Vec a = v[0], b = v[1], c = v[2], d = v[3];
  for (int i = 0; i < kLanes; ++i) v[i] = Vec{a[i], b[i], c[i], d[i]};
}

// out[i] = sum of the lanes of in[i], i < kLanes.
inline void sum_each(const Vec* in, float* out) {
  Vec v[4] = {in[0], in[1], in[2], in[3]};
  transpose(v);
  store(out, (v[0] + v[2]) + (v[1] + v[3]));
}

template <>
struct Unit<float> {
  static constexpr int kSize = 4, kVectors = 1;
  static void load(const float* p, Vec* out) { std::memcpy(out, p, 16); }
  static void store(float* p, const Vec* in) { std::memcpy(p, in, 16); }
  static void load_part(const float* p, int count, Vec* out) { load_padded<float>(p, count, out); }
  static void store_part(float* p, int count, const Vec* in) { store_padded<float>(p, count, in); }
};

template <>
struct Unit<Half> {
  static constexpr int kSize = 8, kVectors = 2;
  static void load(const Half* p, Vec* out) {
    for (int i = 0; i < kSize; ++i) out[i / kLanes][i % kLanes] = to_float(p[i]);
  }
  static void store(Half* p, const Vec* in) {
    for (int i = 0; i < kSize; ++i) p[i] = to_half(in[i / kLanes][i % kLanes]);
  }
  static void load_part(const Half* p, int count, Vec* out) { load_padded<Half>(p, count, out); }
  static void store_part(Half* p, int count, const Vec* in) { store_padded<Half>(p, count, in); }
};

template <>
struct Unit<BFloat> {
  static constexpr int kSize = 8, kVectors = 2;
  static void load(const BFloat* p, Vec* out) {
    Bits pairs;
    std::memcpy(&pairs, p, 16);
    out[0] = reinterpret_cast<Vec>(pairs << 16);
    out[1] = reinterpret_cast<Vec>(pairs & 0xFFFF0000u);
  }
  static void store(BFloat* p, const Vec* in) {
    for (int i = 0; i < kSize; ++i) p[i] = to_bfloat(in[i % 2][i / 2]);
  }
  static void load_part(const BFloat* p, int count, Vec* out) { load_padded<BFloat>(p, count, out); }
  static void store_part(BFloat* p, int count, const Vec* in) { store_padded<BFloat>(p, count, in); }
};

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
