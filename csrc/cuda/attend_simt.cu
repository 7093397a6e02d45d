// Instances of the plain attention kernel: one for each element of a cache.
#include "attend_kernels.h"
#include "looseleaf/attend_simt.h"

namespace looseleaf::cuda {

static_assert(kSimtRows == kSimtTileRows);

const char* launch_simt(const AttendArguments& a, const Plan& plan, void* stream) {
  int64_t num_warps = kSimtWarps;
  while (num_warps > 1 && SimtMemory(a, num_warps).bytes() > kMostSharedBytes) num_warps /= 2;
  const SimtMemory memory(a, num_warps);
  if (memory.bytes() > kMostSharedBytes) return "head dims are too large for a block's shared memory";
  const auto run = [&](auto kernel) {
    return launch(kernel, dim3(static_cast<unsigned>(plan.num_blocks)), static_cast<unsigned>(num_warps * kWarpLanes),
                  memory.bytes(), stream, a, plan);
  };
  switch (a.cache_element) {
    case Element::kFloat32:
      return run(attend_simt_kernel<float>);
    case Element::kFloat16:
      return run(attend_simt_kernel<Half>);
    case Element::kBFloat16:
      return run(attend_simt_kernel<BFloat>);
    case Element::kFloat8E4M3:
      return run(attend_simt_kernel<E4M3>);
    case Element::kFloat8E5M2:
      return run(attend_simt_kernel<E5M2>);
    default:
      return run(attend_simt_kernel<int8_t>);
  }
}

}  // namespace looseleaf::cuda
