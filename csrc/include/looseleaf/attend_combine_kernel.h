// The last kernel of `attend`: combines the parts of items that several blocks share, and clears rows that nobody owns.
#pragma once

#include "looseleaf/attend_state.h"

namespace looseleaf::cuda {

constexpr int kCombineThreads = 128;

// Block b combines the item that block b of the attention began and did not end, in the order of the blocks. Then
// rows that no sequence owns are cleared.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ AttendArguments a, const __grid_constant__ Plan plan) {
  const int64_t block = blockIdx.x, thread = threadIdx.x;
  const int64_t begin = stretch_begin(a, plan, block), end = stretch_begin(a, plan, block + 1);
  if (begin < end && end < num_units(a, plan)) {
    const Item item = find_item(a, plan, end - 1);
    const int64_t item_end = item.first_unit + item.num_units;
    if (item.first_unit >= begin && item_end > end) {
      int64_t last = block + 1;
      while (stretch_begin(a, plan, last + 1) < item_end) ++last;
      for (int64_t i = thread; i < item.num_rows * a.v.dim; i += kCombineThreads) {
        const int64_t row = i / a.v.dim, d = i % a.v.dim;
        float largest = minus_infinity();
        for (int64_t part = block; part <= last; ++part)
          largest = fmaxf(largest, state_of(a, plan, part, part > block, row)[a.v.dim]);
        float sum = 0.0f, weight = 0.0f;
        for (int64_t part = block; part <= last; ++part) {
          const float* state = state_of(a, plan, part, part > block, row);
          const float share = weight_of_part(state[a.v.dim], largest);
          sum += share * state[d];
          weight += share * state[a.v.dim + 1];
        }
        write_result(a, row_of(a, item, row), d, sum, largest, weight, a.v.scale_of(item.kv_head));
      }
    }
  }
  const int64_t first = a.num_seqs == 0 ? 0 : a.cu_query_lens[a.num_seqs];
  for (int64_t row = first + block; row < a.num_rows; row += plan.num_blocks) {
    for (int64_t i = thread; i < a.q_heads * a.v.dim; i += kCombineThreads) {
      const int64_t head = i / a.v.dim, d = i % a.v.dim;
      store_element(a.element, a.out + row * a.out_row_stride + head * a.out_head_stride + d * bytes_of(a.element), 0.0f);
      if (d == 0 && a.lse != nullptr) a.lse[row * a.lse_row_stride + head] = minus_infinity();
    }
  }
}

}  // namespace looseleaf::cuda
