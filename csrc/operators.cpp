// Every file that needs torch's headers, as one unit: reading the headers takes longer than compiling what is ours.
#include <torch/csrc/stable/library.h>

#define LOOSELEAF_IMPLEMENT(library) STABLE_TORCH_LIBRARY_IMPL(looseleaf, CPU, library)

#include "attend_op.cpp"
#include "cpu/backend.cpp"
#include "library.cpp"
#include "moves_op.cpp"
#include "refusal.cpp"
