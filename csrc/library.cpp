// The library as a whole: torch's threads, and what Python asks it outside of any operator.
#include "library.h"

#include <torch/csrc/stable/ops.h>

#include "cpu/attend.h"

namespace looseleaf {
namespace {

void run_on_torch(int64_t count, void (*task)(void* context, int64_t index), void* context) {
  torch::stable::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) task(context, index);
  });
}

}  // namespace

Threads torch_threads() { return {static_cast<int64_t>(torch::stable::get_num_threads()), run_on_torch}; }

}  // namespace looseleaf

// Name of the kernels that a cache of this element (looseleaf::Element) runs on; null where a forced set is missing.
extern "C" __attribute__((visibility("default"))) const char* looseleaf_kernel_name(int32_t element) {
  const looseleaf::Kernels* kernels = looseleaf::kernels_for(static_cast<looseleaf::Element>(element));
  return kernels == nullptr ? nullptr : kernels->name;
}

// Forces a set of kernels in this process, as LOOSELEAF_ISA does; null for the processor's own.
extern "C" __attribute__((visibility("default"))) void looseleaf_force_kernels(const char* name) {
  looseleaf::force_kernels(name);
}
