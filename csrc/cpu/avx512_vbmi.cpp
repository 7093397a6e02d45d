// The expansion of 8-bit rows with AVX-512 VBMI, for every set of kernels that runs where the processor has it.
#define LOOSELEAF_ISA avx512_vbmi
#include "looseleaf/kernels.h"
#include "looseleaf/unpack_avx512.h"

namespace looseleaf {

extern const Unpackers kVbmiUnpackers = {avx512_vbmi::unpack_float8<Element::kFloat8E4M3>,
                                         avx512_vbmi::unpack_float8<Element::kFloat8E5M2>, avx512_vbmi::unpack_int8};

}  // namespace looseleaf
