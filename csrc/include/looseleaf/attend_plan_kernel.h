// The kernel that makes the plan (attend_plan.h). It runs as one block: first the row tiles of each sequence are counted and
// summed, then the units of each row tile.
#pragma once

#include "looseleaf/attend_plan.h"

namespace looseleaf::cuda {

constexpr int kPlanThreads = 512;

// The sum of `value` over the threads before this one, plus `*total`, which then grows by all.
LOOSELEAF_DEVICE int64_t sum_before(int64_t value, int64_t* total) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  const Shared<int64_t> of_warps = shared_at<int64_t>(0);
  int64_t sum = value;
  for (unsigned step = 1; step < kWarpLanes; step *= 2) {
    const int64_t below = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= static_cast<int>(step)) sum += below;
  }
  __syncthreads();  // the last call's sums have been read
  if (lane == kWarpLanes - 1) store_shared(of_warps, warp, sum);
  __syncthreads();
  int64_t before = *total;
  for (int other = 0; other < kPlanThreads / kWarpLanes; ++other) {
    const int64_t of_warp = load_shared(of_warps, other);
    if (other < warp) before += of_warp;
    *total += of_warp;
  }
  return before + sum - value;
}

constexpr int64_t kPlanSharedBytes = 8 * (kPlanThreads / kWarpLanes);

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const __grid_constant__ AttendArguments a, const __grid_constant__ Plan plan) {
  const int64_t thread = threadIdx.x;
  int64_t num_tiles = 0;
  for (int64_t first = 0; first < a.num_seqs; first += kPlanThreads) {
    const int64_t seq = first + thread;
    const int64_t rows = seq < a.num_seqs ? a.query_len(seq) * a.group() : 0;
    const int64_t before = sum_before((rows + plan.tile_rows - 1) / plan.tile_rows, &num_tiles);
    if (seq < a.num_seqs) plan.first_tile[seq] = before;
  }
  if (thread == 0) plan.first_tile[a.num_seqs] = num_tiles;
  __syncthreads();
  int64_t units = 0;
  for (int64_t first = 0; first < num_tiles; first += kPlanThreads) {
    const int64_t tile = first + thread;
    int64_t own = 0;
    if (tile < num_tiles) {
      const int64_t seq = search(plan.first_tile, a.num_seqs, tile);
      own = item_of(a, plan.tile_rows, seq, tile - plan.first_tile[seq]).num_units;
    }
    const int64_t before = sum_before(own, &units);
    if (tile < num_tiles) plan.first_unit[tile] = before;
  }
  if (thread == 0) plan.first_unit[num_tiles] = units;
}

}  // namespace looseleaf::cuda
