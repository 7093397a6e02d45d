// See attend.h. Nothing here reads what the device holds, so a call can be captured in a graph.
#include "attend.h"

#include "attend_kernels.h"
#include "looseleaf/attend_combine_kernel.h"
#include "looseleaf/attend_plan_kernel.h"

namespace looseleaf::cuda {

AttendLaunch attend_launch(const AttendArguments& a, int64_t max_query_len, int64_t num_processors) {
  AttendLaunch chosen = {};
  const int64_t mma_rows = mma_tile_rows(a, max_query_len);
  chosen.is_mma = mma_rows > 0;
  chosen.tile_rows = chosen.is_mma ? mma_rows : kSimtTileRows;
  chosen.num_blocks = 2 * num_processors;
  const int64_t sums = (a.num_seqs + 1) + (max_row_tiles(a, chosen.tile_rows) + 1);
  chosen.tables_bytes = (8 * sums + 15) / 16 * 16;
  chosen.states_bytes = 4 * 2 * chosen.num_blocks * chosen.tile_rows * (a.v.dim + 2);
  return chosen;
}

const char* attend(const AttendArguments& a, const AttendLaunch& chosen, char* workspace, void* stream) {
  Plan plan = {};
  plan.first_tile = reinterpret_cast<int64_t*>(workspace);
  plan.first_unit = plan.first_tile + a.num_seqs + 1;
  plan.states = reinterpret_cast<float*>(workspace + chosen.tables_bytes);
  plan.num_blocks = chosen.num_blocks;
  plan.tile_rows = chosen.tile_rows;
  const dim3 blocks(static_cast<unsigned>(plan.num_blocks));
  const char* error = launch(plan_kernel, dim3(1), kPlanThreads, kPlanSharedBytes, stream, a, plan);
  if (error == nullptr) error = (chosen.is_mma ? launch_mma : launch_simt)(a, plan, stream);
  if (error == nullptr) error = launch(combine_kernel, blocks, kCombineThreads, 0, stream, a, plan);
  return error;
}

}  // namespace looseleaf::cuda
