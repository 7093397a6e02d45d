// The operators on CPU tensors, run by the CUDA kernels in the emulator: a namespace of their own, for tests.
#include <torch/csrc/stable/library.h>

#define LOOSELEAF_IMPLEMENT(library) STABLE_TORCH_LIBRARY_IMPL(looseleaf_emulated, CPU, library)

#include "attend_op.cpp"
#include "cuda/backend.cpp"
#include "emu/emulator.h"
#include "moves_op.cpp"
#include "refusal.cpp"

// Sets who runs first (0 round-robin, 1 reverse, 2 random from a seed), and how many multiprocessors there are.
extern "C" __attribute__((visibility("default"))) void looseleaf_emulate(int32_t order, uint64_t seed, int64_t processors) {
  looseleaf::emu::settings() = {static_cast<looseleaf::emu::Order>(order), seed, processors};
}

// Sends launches elsewhere (null: back here).
extern "C" __attribute__((visibility("default"))) void looseleaf_elsewhere(
    void (*launch)(const void* kernel, const void* parameters, const int64_t* sizes),
    void (*allow)(const void* memory, int64_t bytes)) {
  looseleaf::emu::elsewhere() = {launch, allow};
}

// What was executed since the last call: matrix products, matrix loads, their bank conflicts, asynchronous copies.
extern "C" __attribute__((visibility("default"))) void looseleaf_counts(int64_t* counts) {
  const looseleaf::emu::Counts& all = looseleaf::emu::counts();
  counts[0] = all.matrix_products;
  counts[1] = all.matrix_loads;
  counts[2] = all.bank_conflicts;
  counts[3] = all.async_copies;
  looseleaf::emu::counts() = {};
}
