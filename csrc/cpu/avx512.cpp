// The kernels in AVX-512 (F, BW, DQ, VL); bf16 is widened to fp32 in registers and multiplied there.
#define LOOSELEAF_ISA avx512
// clang-format off
#include "looseleaf/unit.h"
#include "looseleaf/simd_avx512.h"
#include "looseleaf/unpack_avx512.h"
#include "looseleaf/attend_kernels.h"
// clang-format on

namespace looseleaf {

constexpr Unpackers kUnpackers = {avx512::unpack_float8<Element::kFloat8E4M3>, avx512::unpack_float8<Element::kFloat8E5M2>,
                                  avx512::unpack_int8};
extern const Kernels kAvx512Kernels = {"avx512", avx512::attend_kernels<float>, avx512::attend_kernels<Half>,
                                       avx512::attend_kernels<BFloat>, kUnpackers};

}  // namespace looseleaf
