// The driver of `attend`: makes the plan, hands it to the threads, fills rows that nobody owns.
#include "attend.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "plan.h"

namespace looseleaf {
namespace {

void clear_rows(const AttendArguments& a, int64_t first_row) {
  for (int64_t row = first_row; row < a.num_rows; ++row) {
    for (int64_t head = 0; head < a.q_heads; ++head) {
      std::memset(a.out + row * a.out_row_stride + head * a.out_head_stride, 0,
                  static_cast<size_t>(a.v.dim * bytes_of(a.element)));
      if (a.lse != nullptr) a.lse[row * a.lse_row_stride + head] = -INFINITY;
    }
  }
}

}  // namespace

void attend(const AttendArguments& a, const Kernels& kernels, const Threads& threads) {
  static thread_local Plan plan_of_thread;
  Plan& plan = plan_of_thread;
  plan.make(a, threads.count);
  const AttendKernels& kernel = kernels.for_cache(a.cache_element);
  const Unpack unpack = kernels.unpack_of(a.cache_element);

  // One counter for each split sequence, then the states of its parts.
  const int64_t counter_bytes = (static_cast<int64_t>(plan.splits.size()) * 8 + 63) / 64 * 64;
  char* memory = call_scratch(counter_bytes + plan.state_floats * 4);
  int64_t* left = reinterpret_cast<int64_t*>(memory);
  float* states = reinterpret_cast<float*>(memory + counter_bytes);
  for (size_t i = 0; i < plan.splits.size(); ++i) left[i] = plan.splits[i].num_parts;
  std::atomic<int64_t> next_tile{0};

  const auto state_of_part = [&](const Plan::Split& split, int64_t part) {
    const int64_t num_rows = a.query_len(split.seq) * a.q_heads;
    return state_at(a, num_rows, states + split.first_state + (part - split.first_part) * state_floats(a, num_rows));
  };
  const auto work = [&](int64_t thread) {
    for (int64_t index = plan.first_part[thread]; index < plan.first_part[thread + 1]; ++index) {
      const Part& part = plan.parts[index];
      const int64_t num_rows = a.query_len(part.seq) * a.q_heads;
      const int64_t own_floats = part.is_whole ? state_floats(a, num_rows) : 0;
      char* scratch = thread_scratch(plan.scratch_bytes + 4 * own_floats);
      if (part.is_whole) {
        kernel.decode(a, part, state_at(a, num_rows, reinterpret_cast<float*>(scratch)), scratch + 4 * own_floats, unpack);
        continue;
      }
      const Plan::Split& split = plan.splits[plan.split[index]];
      kernel.decode(a, part, state_of_part(split, index), scratch, unpack);
      // Pairs with itself: the last to arrive sees what all others wrote.
      if (std::atomic_ref(left[plan.split[index]]).fetch_sub(1, std::memory_order_acq_rel) == 1) {
        static thread_local std::vector<State> parts;
        parts.clear();
        for (int64_t p = 0; p < split.num_parts; ++p) parts.push_back(state_of_part(split, split.first_part + p));
        kernel.combine(a, split.seq, parts.data(), split.num_parts);
      }
    }
    const int64_t num_tiles = static_cast<int64_t>(plan.tiles.size());
    for (int64_t tile; (tile = next_tile.fetch_add(1, std::memory_order_relaxed)) < num_tiles;)
      kernel.prefill(a, plan.tiles[tile], thread_scratch(plan.scratch_bytes), unpack);
  };
  threads(plan.num_threads, work);
  clear_rows(a, a.num_seqs == 0 ? 0 : a.cu_query_lens[a.num_seqs]);
}

}  // namespace looseleaf
