// The attention kernels of one instruction set, behind its vectors (simd_*.h) and units.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

// clang-format off
#include "looseleaf/math.h"
#include "looseleaf/convert.h"
#include "looseleaf/dot.h"
#include "looseleaf/accumulate.h"
#include "looseleaf/softmax.h"
#ifdef LOOSELEAF_BY_PAIRS
#include "looseleaf/pairs.h"
#endif
#include "looseleaf/decode.h"
#include "looseleaf/prefill.h"
// clang-format on

namespace looseleaf::LOOSELEAF_ISA {
namespace {

template <class T>
constexpr AttendKernels attend_kernels = {decode<T>, combine<T>, prefill<T>};

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
