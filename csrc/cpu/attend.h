// Entry points of the CPU kernels for whoever has checked the arguments: the operators and the sanitizer program.
#pragma once

#include "looseleaf/kernels.h"
#include "threads.h"

namespace looseleaf {

void attend(const AttendArguments& arguments, const Kernels& kernels, const Threads& threads);

// The kernels that this processor runs for a cache of this element: always the same in one process, unless forced.
// Null where LOOSELEAF_ISA (or force_kernels) names a set that is unknown or that the processor lacks.
const Kernels* kernels_for(Element cache_element);
// Names a set as LOOSELEAF_ISA does; null or "": choose again. For tests.
void force_kernels(const char* name);
const char* forced_kernels();

}  // namespace looseleaf
