// The operators on CUDA tensors: every file that needs torch's headers, as one unit. Compiled by the C++ compiler; nvcc sees
// only the .cu files beside this one, which know no torch.
#include <torch/csrc/stable/library.h>

#define LOOSELEAF_IMPLEMENT(library) STABLE_TORCH_LIBRARY_IMPL(looseleaf, CUDA, library)
#define LOOSELEAF_ON_CUDA

#include "attend_op.cpp"
#include "cuda/backend.cpp"
#include "moves_op.cpp"
#include "refusal.cpp"
