// One function for each instruction that C++ has no word for: copies past the registers, matrix loads and products.
//
// The instruction set is that of sm_80, which every later card runs too. No other file holds assembly but device.h.
#pragma once

#include "looseleaf/device.h"

namespace looseleaf {

#if defined(__CUDACC__)

template <class T>
LOOSELEAF_DEVICE uint32_t shared_address(Shared<T> memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

// 16 bytes from global to shared memory; `is_there` false: zeros, and `source` is not read.
template <class T>
LOOSELEAF_DEVICE void copy_async(Shared<T> target, const void* source, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source),
               "r"(is_there ? 16 : 0)
               : "memory");
}
LOOSELEAF_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until no more than `kAllowed` of this thread's groups are on their way.
template <int kAllowed>
LOOSELEAF_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kAllowed) : "memory");
}

template <class T>
LOOSELEAF_DEVICE void load_matrices(uint32_t (&out)[4], Shared<T> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
template <class T>
LOOSELEAF_DEVICE void load_matrices_transposed(uint32_t (&out)[4], Shared<T> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
LOOSELEAF_DEVICE uint32_t transpose_matrix(uint32_t value) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(value));
  return result;
}

// sums[16 x 8] += a[16 x 16] b[16 x 8]
LOOSELEAF_DEVICE void multiply_matrices(Half, float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
LOOSELEAF_DEVICE void multiply_matrices(BFloat, float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two elements side by side, `low` in the low half, rounded to nearest even.
LOOSELEAF_DEVICE uint32_t pack_pair(Half, float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
LOOSELEAF_DEVICE uint32_t pack_pair(BFloat, float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Bytes of `low` (0 to 3) and `high` (4 to 7), chosen by the nibbles of `selector` from the lowest on.
LOOSELEAF_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}
// Products of two pairs; subnormal numbers count.
LOOSELEAF_DEVICE uint32_t multiply_pairs(Half, uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
LOOSELEAF_DEVICE uint32_t multiply_pairs(BFloat, uint32_t a, uint32_t b) {
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

#else

template <class T>
void copy_async(Shared<T> target, const void* source, bool is_there, LOOSELEAF_HERE) {
  emu::copy_async(target.address, source, 16, is_there ? 16 : 0, here);
}
inline void commit_copies() { emu::commit_copies(); }
template <int kAllowed>
void wait_copies(LOOSELEAF_HERE) {
  emu::wait_copies(kAllowed, here);
}

template <class T>
void load_matrices(uint32_t (&out)[4], Shared<T> row, LOOSELEAF_HERE) {
  emu::matrix_load(out, row.address, false, here);
}
template <class T>
void load_matrices_transposed(uint32_t (&out)[4], Shared<T> row, LOOSELEAF_HERE) {
  emu::matrix_load(out, row.address, true, here);
}
inline uint32_t transpose_matrix(uint32_t value, LOOSELEAF_HERE) { return emu::matrix_transpose(value, here); }

inline void multiply_matrices(Half, float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], LOOSELEAF_HERE) {
  emu::matrix_product(false, sums, a, b, here);
}
inline void multiply_matrices(BFloat, float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], LOOSELEAF_HERE) {
  emu::matrix_product(true, sums, a, b, here);
}

inline uint32_t pack_pair(Half, float low, float high) {
  return uint32_t{to_half(high).bits} << 16 | to_half(low).bits;
}
inline uint32_t pack_pair(BFloat, float low, float high) {
  return uint32_t{to_bfloat(high).bits} << 16 | to_bfloat(low).bits;
}

inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7u)) & 0xFFu) << (8 * i);
  return result;
}
template <class T>
uint32_t multiply_pairs(T, uint32_t a, uint32_t b) {
  const auto half = [](uint32_t pair, int which) { return to_float(T{static_cast<uint16_t>(pair >> (16 * which))}); };
  return pack_pair(T{}, half(a, 0) * half(b, 0), half(a, 1) * half(b, 1));
}

#endif

}  // namespace looseleaf
