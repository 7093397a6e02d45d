// What the emulator must catch: kernels with one fault each, and sound ones that must pass. For tests/kernels.
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "looseleaf/ptx.h"

namespace looseleaf {
namespace {

constexpr unsigned kThreads = 64;
constexpr int64_t kBytes = 8192;

alignas(16) char global[kBytes];
float result;

Shared<float> floats() { return shared_at<float>(0); }
int thread() { return static_cast<int>(threadIdx.x); }
int lane_of() { return thread() % kWarpLanes; }

void barrier_in_branch() {
  if (thread() < 32) __syncthreads();
  __syncthreads();
}
void barriers_at_two_places() {
  if (thread() < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
void shuffle_in_branch() {
  if (lane_of() < 7) __shfl_xor_sync(kAllLanes, 1.0f, 1);
  __syncwarp();
}
void shuffle_without_own_lane() { __shfl_sync(0x0000FFFFu, 1, 0); }
void shuffle_from_outside_its_mask() {
  if (lane_of() < 16) __shfl_sync(0x0000FFFFu, 1, 20);
}
void shuffle_with_two_masks() { __ballot_sync(lane_of() < 16 ? kAllLanes : 0xFFFF0001u, true); }
void mask_of_lanes_that_ended() {
  if (lane_of() == 3) return;
  __syncwarp();
}
void shared_past_the_end() { store_shared(floats(), kBytes / 4 + (thread() == 5 ? 0 : -1 - thread()), 1.0f); }
void shared_before_the_start() { load_shared(floats() + -1, 0); }
void shared_misaligned() { store_shared(shared_at<float>(2), thread(), 1.0f); }
void shared_never_written() { result = load_shared(floats(), thread()); }
void copy_read_before_wait() {
  copy_async(floats() + 4 * thread(), global, true);
  commit_copies();
  result = load_shared(floats(), 4 * thread());
}
void copy_waited_one_too_few() {
  for (int stage = 0; stage < 2; ++stage) {
    copy_async(floats() + 4 * (thread() + 64 * stage), global, true);
    commit_copies();
  }
  wait_copies<1>();
  result = load_shared(floats(), 4 * (thread() + 64));
}
void copy_read_by_other_lane_without_barrier() {
  copy_async(floats() + 4 * thread(), global, true);
  commit_copies();
  wait_copies<0>();
  result = load_shared(floats(), 4 * (thread() ^ 1));
}
void copy_misaligned_source() { copy_async(floats() + 4 * thread(), global + 8, true); }
void copy_misaligned_target() { copy_async(floats() + 4 * thread() + 1, global, true); }
void copy_over_copy() {
  copy_async(floats() + 4 * thread(), global, true);
  copy_async(floats() + 4 * thread(), global, true);
}
void two_write_one_word() { store_shared(floats(), thread() / 2, 1.0f); }
void read_without_block_barrier() {
  store_shared(floats(), thread(), 1.0f);
  __syncwarp();
  result = load_shared(floats(), (thread() + 32) % 64);
}
void overwrite_without_warp_barrier() {
  store_shared(floats(), thread(), 1.0f);
  __syncwarp();
  result = load_shared(floats(), thread() ^ 1);
  store_shared(floats(), thread(), 2.0f);
}
void matrix_row_misaligned() {
  for (int i = 0; i < 32; ++i) store_shared(floats(), thread() * 32 + i, 0.0f);
  __syncthreads();
  uint32_t out[4];
  load_matrices(out, floats() + 2 + lane_of() * 8);
}
void global_misaligned() { load_global<uint4>(global + 4 + thread() % 2); }

void sound_exchange() {
  store_shared(floats(), thread(), static_cast<float>(thread()));
  __syncthreads();
  float sum = load_shared(floats(), thread() ^ 32);
  for (int bit = 1; bit < 32; bit *= 2) sum += __shfl_xor_sync(kAllLanes, sum, bit);
  __syncthreads();
  store_shared(floats(), thread(), sum);
  __syncwarp();
  if (load_shared(floats(), thread() ^ 1) != (thread() < 32 ? 1520.0f : 496.0f)) throw std::logic_error("wrong sum");
}
void sound_copies() {
  for (int stage = 0; stage < 2; ++stage) {
    copy_async(floats() + 4 * (thread() + 64 * stage), global + 16 * stage, stage == 0);
    commit_copies();
  }
  wait_copies<1>();
  __syncwarp();
  if (load_shared(floats(), 4 * (thread() ^ 1)) != 1.5f) throw std::logic_error("not copied");
  wait_copies<0>();
  __syncthreads();
  if (load_shared(floats(), 4 * (63 - thread() + 64)) != 0.0f) throw std::logic_error("not zero");
}
void sound_early_end() {
  if (thread() >= 32) return;
  __syncthreads();
  if (__ballot_sync(kAllLanes, lane_of() % 2 == 1) != 0xAAAAAAAAu) throw std::logic_error("wrong votes");
  if (lane_of() < 16 && __shfl_sync(0x0000FFFFu, lane_of(), 7) != 7) throw std::logic_error("wrong lane");
}

struct Case {
  const char* name;
  void (*kernel)();
  const char* words;  // of the message; null: nothing may be caught
};

constexpr Case kCases[] = {
    {"barrier_in_branch", barrier_in_branch, "divergent __syncthreads"},
    {"barriers_at_two_places", barriers_at_two_places, "divergent __syncthreads"},
    {"shuffle_in_branch", shuffle_in_branch, "divergent"},
    {"shuffle_without_own_lane", shuffle_without_own_lane, "does not name the lane"},
    {"shuffle_from_outside_its_mask", shuffle_from_outside_its_mask, "which its mask does not name"},
    {"shuffle_with_two_masks", shuffle_with_two_masks, "mask"},
    {"mask_of_lanes_that_ended", mask_of_lanes_that_ended, "names"},
    {"shared_past_the_end", shared_past_the_end, "out of range"},
    {"shared_before_the_start", shared_before_the_start, "out of range"},
    {"shared_misaligned", shared_misaligned, "misaligned"},
    {"shared_never_written", shared_never_written, "nothing was written"},
    {"copy_read_before_wait", copy_read_before_wait, "used before the cp.async"},
    {"copy_waited_one_too_few", copy_waited_one_too_few, "used before the cp.async"},
    {"copy_read_by_other_lane_without_barrier", copy_read_by_other_lane_without_barrier, ""},
    {"copy_misaligned_source", copy_misaligned_source, "misaligned"},
    {"copy_misaligned_target", copy_misaligned_target, "misaligned"},
    {"copy_over_copy", copy_over_copy, "used before the cp.async"},
    {"two_write_one_word", two_write_one_word, "race"},
    {"read_without_block_barrier", read_without_block_barrier, ""},
    {"overwrite_without_warp_barrier", overwrite_without_warp_barrier, "race"},
    {"matrix_row_misaligned", matrix_row_misaligned, "misaligned"},
    {"global_misaligned", global_misaligned, "misaligned"},
    {"sound_exchange", sound_exchange, nullptr},
    {"sound_copies", sound_copies, nullptr},
    {"sound_early_end", sound_early_end, nullptr},
};

// The message for a fault in file and line, or "" where the kernel ran to its end.
std::string run(const Case& each) {
  try {
    launch(each.kernel, dim3(2), kThreads, kBytes, nullptr);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

int check_all() {
  const float first = 1.5f;
  std::memcpy(global, &first, 4);
  int caught = 0, faults = 0, wrong = 0;
  for (const Case& each : kCases) {
    const std::string message = run(each);
    const bool names_place = message.find("block (") != std::string::npos && message.find("thread (") != std::string::npos &&
                             message.find("faults.cpp:") != std::string::npos;
    const bool is_fault = each.words != nullptr;
    const bool is_right = is_fault ? names_place && message.find(each.words) != std::string::npos : message.empty();
    faults += is_fault;
    caught += is_fault && is_right;
    wrong += !is_right;
    if (!is_right) std::printf("%s: %s\n", each.name, message.empty() ? "not caught" : message.c_str());
  }
  std::printf("caught %d of %d\n", caught, faults);
  return wrong;
}

}  // namespace
}  // namespace looseleaf

int main() {
  using looseleaf::emu::Order;
  int wrong = 0;
  for (const Order order : {Order::kRoundRobin, Order::kReverse, Order::kRandom}) {
    for (uint64_t seed = 0; seed < (order == Order::kRandom ? 3 : 1); ++seed) {
      looseleaf::emu::settings() = {order, seed};
      wrong += looseleaf::check_all();
    }
  }
  return wrong == 0 ? 0 : 1;
}
