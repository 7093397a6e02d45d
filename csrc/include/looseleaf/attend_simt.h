// Attention for GPUs without tensor cores: fp32, 8-bit caches, and every head dim, group and stride that the fast path
// does not take. Plain and complete; checked by tests/kernels/test_cuda_attend.py in the emulator.
//
// A block of up to kSimtWarps warps walks its stretch of the plan, one item after another. A warp takes every so-many-th
// step of 32 tokens: for the scores a lane is a token and reads its row of K, for the sums a lane is an element and reads
// a column of V. Shared memory: the rows of q as fp32, then for each warp its sums [rows][v dim], and the
// probabilities and V addresses of its step. Warps meet once for each item, to merge their states.
#pragma once

#include "looseleaf/attend_state.h"
#include "looseleaf/expand.h"

namespace looseleaf::cuda {

constexpr int kSimtWarps = 4;
constexpr int kSimtRows = 8;  // two 16-byte words of probabilities for each token

struct alignas(16) Four {
  float at[4];
};

using looseleaf::to_float;
LOOSELEAF_DEVICE float to_float(float value) { return value; }
LOOSELEAF_DEVICE float to_float(E4M3 value) { return to_float_8bit(Element::kFloat8E4M3, value.bits); }
LOOSELEAF_DEVICE float to_float(E5M2 value) { return to_float_8bit(Element::kFloat8E5M2, value.bits); }
LOOSELEAF_DEVICE float to_float(int8_t value) { return static_cast<float>(value); }

// Bytes of each region of shared memory.
struct SimtMemory {
  int64_t k_words;  // of four floats, in a row of q
  int64_t v_dim;
  int64_t num_warps;

  LOOSELEAF_INLINE SimtMemory(const AttendArguments& a, int64_t warps)
      : k_words((a.k.dim + 3) / 4), v_dim(a.v.dim), num_warps(warps) {}
  LOOSELEAF_INLINE int64_t q_bytes() const { return 16 * kSimtRows * k_words; }
  LOOSELEAF_INLINE int64_t warp_bytes() const {
    return (4 * kSimtRows * (v_dim + 2) + 15) / 16 * 16 + kWarpLanes * (4 * kSimtRows + 8);
  }
  LOOSELEAF_INLINE int64_t sums(int64_t warp) const { return q_bytes() + warp * warp_bytes(); }
  LOOSELEAF_INLINE int64_t states(int64_t warp) const { return sums(warp) + 4 * kSimtRows * v_dim; }
  LOOSELEAF_INLINE int64_t shares(int64_t warp) const { return sums(warp + 1) - kWarpLanes * (4 * kSimtRows + 8); }
  LOOSELEAF_INLINE int64_t addresses(int64_t warp) const { return sums(warp + 1) - kWarpLanes * 8; }
  LOOSELEAF_INLINE int64_t bytes() const { return sums(num_warps); }
};

// Sixteen bytes of a row as floats; elements at `count` and after it are 0 and not read.
template <class T>
LOOSELEAF_DEVICE void load_elements(const char* from, int64_t count, float (&out)[16 / sizeof(T)]) {
  constexpr int kCount = 16 / sizeof(T);
  T elements[kCount] = {};
  if (count >= kCount && reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const uint4 words = load_global<uint4>(from);
    memcpy(elements, &words, 16);
  } else {
    for (int i = 0; i < kCount; ++i)
      if (i < count) elements[i] = *reinterpret_cast<const T*>(from + i * static_cast<int64_t>(sizeof(T)));
  }
  for (int i = 0; i < kCount; ++i) out[i] = to_float(elements[i]);
}

LOOSELEAF_DEVICE void load_queries(const AttendArguments& a, const Item& item, const SimtMemory& memory) {
  const Shared<float> queries = shared_at<float>(0);
  const int64_t width = 4 * memory.k_words, bytes = bytes_of(a.element);
  for (int64_t i = threadIdx.x; i < kSimtRows * width; i += blockDim.x) {
    const int64_t r = i / width, d = i % width;
    float value = 0.0f;
    if (r < item.num_rows && d < a.k.dim) {
      const Row row = row_of(a, item, r);
      value = load_element(a.element, a.q + row.index * a.q_row_stride + row.head * a.q_head_stride + d * bytes);
    }
    store_shared(queries, i, value);
  }
}

template <class T>
LOOSELEAF_DEVICE void products_of(const AttendArguments& a, const SimtMemory& memory, const char* key,
                                  float (&products)[kSimtRows]) {
  constexpr int kCount = 16 / sizeof(T);
  const Shared<Four> queries = shared_at<Four>(0);
  for (int r = 0; r < kSimtRows; ++r) products[r] = 0.0f;
  for (int64_t d = 0; d < a.k.dim; d += kCount) {
    float elements[kCount];
    load_elements<T>(key + d * static_cast<int64_t>(sizeof(T)), a.k.dim - d, elements);
    for (int word = 0; word < kCount / 4; ++word) {
      if (d / 4 + word >= memory.k_words) break;
      for (int r = 0; r < kSimtRows; ++r) {
        const Four query = load_shared(queries, r * memory.k_words + d / 4 + word);
        for (int i = 0; i < 4; ++i) products[r] += query.at[i] * elements[4 * word + i];
      }
    }
  }
}

// A warp's states over its steps of a stretch, left in shared memory.
template <class T>
LOOSELEAF_DEVICE void attend_steps(const AttendArguments& a, const Stretch& stretch, const SimtMemory& memory) {
  const Item& item = stretch.item;
  const int64_t warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const Shared<float> sums = shared_at<float>(memory.sums(warp)), states = shared_at<float>(memory.states(warp));
  const Shared<Four> shares = shared_at<Four>(memory.shares(warp));
  const Shared<int64_t> addresses = shared_at<int64_t>(memory.addresses(warp));
  for (int64_t i = lane; i < kSimtRows * a.v.dim; i += kWarpLanes) store_shared(sums, i, 0.0f);
  float largest[kSimtRows], weight[kSimtRows];
  for (int r = 0; r < kSimtRows; ++r) {
    largest[r] = minus_infinity();
    weight[r] = 0.0f;
  }
  const int32_t* cells = a.block_table + item.seq * a.table_stride;
  const float scale = a.scale * a.k.scale_of(item.kv_head);
  const int64_t end_token = stretch.end_token();
  for (int64_t first = stretch.first_token() + warp * kWarpLanes; first < end_token; first += memory.num_warps * kWarpLanes) {
    const int64_t token = first + lane;
    const bool is_there = token < end_token;
    float products[kSimtRows] = {};
    int64_t v_offset = 0;
    if (is_there) {
      const int64_t block = cells[token / a.block_size], offset = token % a.block_size;
      products_of<T>(a, memory,
                     a.k.data + block * a.k.block_stride + item.kv_head * a.k.head_stride + offset * a.k.token_stride,
                     products);
      v_offset = block * a.v.block_stride + item.kv_head * a.v.head_stride + offset * a.v.token_stride;
    }
    float rescale[kSimtRows];
    Four share[2];
    for (int r = 0; r < kSimtRows; ++r) {
      const bool counts = is_there && r < item.num_rows;
      const float score = counts ? score_of(a, row_of(a, item, r), token, products[r], scale) : minus_infinity();
      float top = fmaxf(largest[r], score);
      for (int bit = 1; bit < kWarpLanes; bit *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, bit));
      const float reference = top == minus_infinity() ? 0.0f : top;
      rescale[r] = exp2_fast(largest[r] - reference);
      share[r / 4].at[r % 4] = exp2_fast(score - reference);
      weight[r] = weight[r] * rescale[r] + share[r / 4].at[r % 4];
      largest[r] = top;
    }
    __syncwarp();  // the last step's shares have been read
    store_shared(shares, 2 * lane, share[0]);
    store_shared(shares, 2 * lane + 1, share[1]);
    store_shared(addresses, lane, v_offset);
    __syncwarp();
    const int64_t count = end_token - first < kWarpLanes ? end_token - first : kWarpLanes;
    for (int64_t d = lane; d < a.v.dim; d += kWarpLanes) {
      float step[kSimtRows] = {};
      for (int64_t t = 0; t < count; ++t) {
        const T element = *reinterpret_cast<const T*>(a.v.data + load_shared(addresses, t) + d * static_cast<int64_t>(sizeof(T)));
        const float value = to_float(element);
        const Four low = load_shared(shares, 2 * t), high = load_shared(shares, 2 * t + 1);
        for (int r = 0; r < 4; ++r) {
          step[r] += low.at[r] * value;
          step[4 + r] += high.at[r] * value;
        }
      }
      for (int r = 0; r < kSimtRows; ++r)
        store_shared(sums, r * a.v.dim + d, load_shared(sums, r * a.v.dim + d) * rescale[r] + step[r]);
    }
  }
  for (int r = 0; r < kSimtRows; ++r) {
    for (int bit = 1; bit < kWarpLanes; bit *= 2) weight[r] += __shfl_xor_sync(kAllLanes, weight[r], bit);
    if (lane == 0) {
      store_shared(states, 2 * r, largest[r]);
      store_shared(states, 2 * r + 1, weight[r]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kSimtWarps * kWarpLanes, 2)
    attend_simt_kernel(const __grid_constant__ AttendArguments a, const __grid_constant__ Plan plan) {
  const SimtMemory memory(a, blockDim.x / kWarpLanes);
  const int64_t end = stretch_begin(a, plan, int64_t{blockIdx.x} + 1);
  for (int64_t unit = stretch_begin(a, plan, blockIdx.x); unit < end;) {
    const Stretch stretch = stretch_at(a, plan, unit, end);
    const Item& item = stretch.item;
    load_queries(a, item, memory);
    __syncthreads();
    attend_steps<T>(a, stretch, memory);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < item.num_rows * a.v.dim; i += blockDim.x) {
      const int64_t r = i / a.v.dim, d = i % a.v.dim;
      float largest = minus_infinity();
      for (int64_t warp = 0; warp < memory.num_warps; ++warp)
        largest = fmaxf(largest, load_shared(shared_at<float>(memory.states(warp)), 2 * r));
      float sum = 0.0f, weight = 0.0f;
      for (int64_t warp = 0; warp < memory.num_warps; ++warp) {
        const float share = weight_of_part(load_shared(shared_at<float>(memory.states(warp)), 2 * r), largest);
        sum += share * load_shared(shared_at<float>(memory.sums(warp)), i);
        weight += share * load_shared(shared_at<float>(memory.states(warp)), 2 * r + 1);
      }
      write_part(a, plan, stretch, r, d, sum, largest, weight);
    }
    __syncthreads();
    unit = item.first_unit + stretch.end;
  }
}

}  // namespace looseleaf::cuda
