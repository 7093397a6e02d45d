// The kernels in plain vectors of four floats: for any processor, and the one that is compiled for Arm.
#define LOOSELEAF_ISA portable
// clang-format off
#include "looseleaf/unit.h"
#include "looseleaf/simd_portable.h"
#include "looseleaf/unpack.h"
#include "looseleaf/attend_kernels.h"
// clang-format on

namespace looseleaf {

constexpr Unpackers kUnpackers = {portable::unpack_by_table<Element::kFloat8E4M3>,
                                  portable::unpack_by_table<Element::kFloat8E5M2>,
                                  portable::unpack_by_table<Element::kInt8>};
extern const Kernels kPortableKernels = {"portable", portable::attend_kernels<float>, portable::attend_kernels<Half>,
                                         portable::attend_kernels<BFloat>, kUnpackers};

}  // namespace looseleaf
