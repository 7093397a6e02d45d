// What our kernel is measured against: paged decode in its classic form. A block of threads takes one query head of one
// sequence, alone and from the first token to the last; the heads of a group read the same keys and values again.
//
// bf16, head dim 128, and scores of a whole sequence in shared memory. 16 lanes read one row, 16 bytes each.
// Compiled by the benchmark alone; checked by tests/kernels/test_gpu_script.py in the emulator and by NVRTC.
#include "looseleaf/device.h"

namespace looseleaf {

constexpr int kClassicDim = 128;
constexpr int kClassicThreads = 128;
constexpr int kRowLanes = 16;  // eight elements each
constexpr int kRowsAtOnce = kClassicThreads / kRowLanes;

struct ClassicArguments {
  const char *q, *k, *v;  // q and out [seqs, heads, 128], dense
  char* out;
  const int32_t *block_table, *seq_lens;
  int64_t block_stride, head_stride, token_stride, table_stride;  // bytes, but for the table's cells
  int64_t group, block_size;
  float scale;
};

struct Eight {
  float at[8];
};

LOOSELEAF_DEVICE Eight load_eight(const char* from) {
  const uint4 words = load_global<uint4>(from);
  uint16_t bits[8];
  memcpy(bits, &words, 16);
  Eight result;
  for (int i = 0; i < 8; ++i) result.at[i] = to_float(BFloat{bits[i]});
  return result;
}

// Of all threads of the block; `memory` holds one float for each warp.
template <bool kIsMax>
LOOSELEAF_DEVICE float reduce(float value, Shared<float> memory) {
  for (int bit = 1; bit < kWarpLanes; bit *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, bit);
    value = kIsMax ? fmaxf(value, other) : value + other;
  }
  __syncthreads();
  if (threadIdx.x % kWarpLanes == 0) store_shared(memory, threadIdx.x / kWarpLanes, value);
  __syncthreads();
  value = load_shared(memory, 0);
  for (int warp = 1; warp < kClassicThreads / kWarpLanes; ++warp) {
    const float other = load_shared(memory, warp);
    value = kIsMax ? fmaxf(value, other) : value + other;
  }
  return value;
}

__global__ void __launch_bounds__(kClassicThreads) classic_kernel(const __grid_constant__ ClassicArguments a) {
  const int64_t head = blockIdx.x, seq = blockIdx.y, length = a.seq_lens[seq];
  const int64_t row_lane = threadIdx.x % kRowLanes, first = threadIdx.x / kRowLanes;
  const int64_t row = (seq * int64_t{gridDim.x} + head) * kClassicDim * 2;
  const Shared<float> sums = shared_at<float>(0);  // [rows at once][128], then one for each warp, then the scores
  const Shared<float> of_warps = sums + kRowsAtOnce * kClassicDim, scores = of_warps + kClassicThreads / kWarpLanes;
  const int32_t* cells = a.block_table + seq * a.table_stride;
  const int64_t place = head / a.group * a.head_stride + row_lane * 16;
  const auto offset_of = [&](int64_t token) {
    return cells[token / a.block_size] * a.block_stride + token % a.block_size * a.token_stride + place;
  };
  const Eight query = load_eight(a.q + row + row_lane * 16);
  float largest = -HUGE_VALF;
  for (int64_t begin = 0; begin < length; begin += kRowsAtOnce) {  // whole warps, for the shuffles
    const int64_t token = begin + first;
    float score = 0.0f;
    if (token < length) {
      const Eight key = load_eight(a.k + offset_of(token));
      for (int i = 0; i < 8; ++i) score += query.at[i] * key.at[i];
    }
    for (int bit = 1; bit < kRowLanes; bit *= 2) score += __shfl_xor_sync(kAllLanes, score, bit);
    if (token < length) {
      if (row_lane == 0) store_shared(scores, token, score * a.scale);
      largest = fmaxf(largest, score * a.scale);
    }
  }
  largest = reduce<true>(largest, of_warps);
  float weight = 0.0f;
  for (int64_t token = threadIdx.x; token < length; token += kClassicThreads) {
    const float share = exp2_fast((load_shared(scores, token) - largest) * 1.4426950408889634f);
    store_shared(scores, token, share);
    weight += share;
  }
  weight = reduce<false>(weight, of_warps);
  Eight sum = {};
  for (int64_t token = first; token < length; token += kRowsAtOnce) {
    const Eight value = load_eight(a.v + offset_of(token));
    const float share = load_shared(scores, token);
    for (int i = 0; i < 8; ++i) sum.at[i] += share * value.at[i];
  }
  for (int i = 0; i < 8; ++i) store_shared(sums, first * kClassicDim + row_lane * 8 + i, sum.at[i]);
  __syncthreads();
  float total = 0.0f;
  for (int r = 0; r < kRowsAtOnce; ++r) total += load_shared(sums, r * kClassicDim + threadIdx.x);
  store_element(Element::kBFloat16, a.out + row + threadIdx.x * 2, total / weight);
}

#if !defined(__CUDACC_RTC__)
// Returns what went wrong, or null.
extern "C" __attribute__((visibility("default"))) const char* looseleaf_classic(const ClassicArguments* arguments,
                                                                                int64_t q_heads, int64_t num_seqs,
                                                                                int64_t longest, void* stream) {
  const int64_t bytes = 4 * (kRowsAtOnce * kClassicDim + kClassicThreads / kWarpLanes + longest);
  const dim3 grid(static_cast<unsigned>(q_heads), static_cast<unsigned>(num_seqs));
  return launch(classic_kernel, grid, kClassicThreads, bytes, stream, *arguments);
}
#endif

}  // namespace looseleaf
