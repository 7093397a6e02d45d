// Placeholder: AVX-512 BF16 pairs.
#define LOOSELEAF_ISA avx512_bf16
// clang-format off
#include "looseleaf/unit.h"
#include "looseleaf/simd_avx512.h"
#include "looseleaf/unpack_avx512.h"
#include "looseleaf/attend_kernels.h"
// clang-format on

namespace looseleaf {

constexpr Unpackers kUnpackers = {avx512_bf16::unpack_float8<Element::kFloat8E4M3>, avx512_bf16::unpack_float8<Element::kFloat8E5M2>,
                                  avx512_bf16::unpack_int8};
extern const Kernels kAvx512Bf16Kernels = {"avx512_bf16", avx512_bf16::attend_kernels<float>, avx512_bf16::attend_kernels<Half>,
                                       avx512_bf16::attend_kernels<BFloat>, kUnpackers};

}  // namespace looseleaf
