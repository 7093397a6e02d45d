// The kernels in AVX2, FMA and F16C: any x86 processor since 2013, about.
#define LOOSELEAF_ISA avx2
// clang-format off
#include "looseleaf/unit.h"
#include "looseleaf/simd_avx2.h"
#include "looseleaf/unpack.h"
#include "looseleaf/attend_kernels.h"
// clang-format on

namespace looseleaf {

constexpr Unpackers kUnpackers = {avx2::unpack_by_table<Element::kFloat8E4M3>, avx2::unpack_by_table<Element::kFloat8E5M2>,
                                  avx2::unpack_by_table<Element::kInt8>};
extern const Kernels kAvx2Kernels = {"avx2", avx2::attend_kernels<float>, avx2::attend_kernels<Half>,
                                     avx2::attend_kernels<BFloat>, kUnpackers};

}  // namespace looseleaf
