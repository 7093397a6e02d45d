// CUDA kernels that move tokens and blocks: memory decides their time, so each reads and writes every byte once, 16 bytes
// at a time where addresses allow it. Checked by tests/kernels/test_cuda_moves.py in the emulator.
//
// write   a block of threads takes kWriteTokens tokens; all heads of K, then of V.
// gather  a block takes one row of the output and searches its sequence.
// copy    a block takes one pair of blocks of one tensor.
// merge   a warp takes one head of one row.
#pragma once

#include "looseleaf/device.h"
#include "looseleaf/moves_arguments.h"

namespace looseleaf::cuda {

constexpr int kMoveThreads = 256;
constexpr int kWriteTokens = 8;
constexpr int kMaxCopyTensors = 48;  // of one launch: they travel in its parameters

template <class T>
LOOSELEAF_DEVICE void copy_units(char* to, const char* from, int64_t bytes, int64_t first, int64_t step) {
  for (int64_t i = first; i < bytes / static_cast<int64_t>(sizeof(T)); i += step)
    store_global<T>(reinterpret_cast<T*>(to) + i, load_global<T>(from + i * static_cast<int64_t>(sizeof(T))));
}

// Threads `first` of `step` copy together.
LOOSELEAF_DEVICE void copy_bytes(char* to, const char* from, int64_t bytes, int64_t first, int64_t step) {
  const uint64_t bits = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | static_cast<uint64_t>(bytes);
  if (bits % 16 == 0) {
    copy_units<uint4>(to, from, bytes, first, step);
  } else if (bits % 4 == 0) {
    copy_units<uint32_t>(to, from, bytes, first, step);
  } else if (bits % 2 == 0) {
    copy_units<uint16_t>(to, from, bytes, first, step);
  } else {
    copy_units<uint8_t>(to, from, bytes, first, step);
  }
}

struct WriteArguments {
  Transfer transfers[2];
  const int64_t* slots;
  int64_t num_tokens, kv_heads, block_size;
};

// One bit for each token of the block: its slot stands again in a later token, which alone is written then.
LOOSELEAF_DEVICE uint32_t superseded_tokens(const WriteArguments& p, int64_t first_token) {
  const int thread = static_cast<int>(threadIdx.x);
  int64_t own[kWriteTokens];
  for (int i = 0; i < kWriteTokens; ++i)
    own[i] = first_token + i < p.num_tokens ? p.slots[first_token + i] : -1;
  uint32_t found = 0;
  for (int64_t token = first_token + 1 + thread; token < p.num_tokens; token += kMoveThreads) {
    const int64_t slot = p.slots[token];
    for (int i = 0; i < kWriteTokens; ++i)
      if (slot == own[i] && token > first_token + i) found |= 1u << i;
  }
  for (int bit = 1; bit < kWarpLanes; bit *= 2) found |= __shfl_xor_sync(kAllLanes, found, bit);
  const Shared<uint32_t> of_warps = shared_at<uint32_t>(0);
  if (thread % kWarpLanes == 0) store_shared(of_warps, thread / kWarpLanes, found);
  __syncthreads();
  for (int warp = 0; warp < kMoveThreads / kWarpLanes; ++warp) found |= load_shared(of_warps, warp);
  return found;
}

LOOSELEAF_DEVICE void write_row(const Transfer& t, const char* from, char* to, float scale, int64_t first, int64_t step) {
  const int64_t bytes = bytes_of(t.rows.element);
  if (!is_8bit(t.element)) {
    copy_bytes(to, from, t.cache.dim * bytes, first, step);
    return;
  }
  for (int64_t d = first; d < t.cache.dim; d += step)
    to[d] = static_cast<char>(encode_8bit(t.element, load_element(t.rows.element, from + d * bytes) / scale));
}

__global__ void __launch_bounds__(kMoveThreads) write_kernel(const __grid_constant__ WriteArguments p) {
  const int64_t first_token = int64_t{blockIdx.x} * kWriteTokens;
  const uint32_t superseded = superseded_tokens(p, first_token);
  const int64_t warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  for (int64_t item = warp; item < kWriteTokens * 2 * p.kv_heads; item += kMoveThreads / kWarpLanes) {
    const int64_t which = item / (2 * p.kv_heads), row = item % (2 * p.kv_heads);
    const int64_t token = first_token + which, head = row % p.kv_heads;
    const int64_t slot = token < p.num_tokens ? p.slots[token] : -1;
    if (slot < 0 || (superseded >> which & 1u) != 0) continue;
    const Transfer& t = p.transfers[row / p.kv_heads];
    const int64_t block = slot / p.block_size, offset = slot % p.block_size;
    write_row(t, t.rows.data + token * t.rows.row_stride + head * t.rows.head_stride,
              t.cache_data + block * t.cache.block_stride + head * t.cache.head_stride + offset * t.cache.token_stride,
              t.cache.scale_of(head), lane, kWarpLanes);
  }
}

struct GatherArguments {
  Transfer transfers[2];
  const int32_t *block_table, *cu_seq_lens;
  int64_t table_stride, num_seqs, kv_heads, block_size;
};

__global__ void __launch_bounds__(kMoveThreads) gather_kernel(const __grid_constant__ GatherArguments p) {
  const int64_t row = blockIdx.x;
  if (row >= p.cu_seq_lens[p.num_seqs]) return;
  int64_t seq = 0, end = p.num_seqs;  // the last sequence that begins at or before the row and is not empty there
  while (seq + 1 < end) {
    const int64_t middle = (seq + end) / 2;
    (p.cu_seq_lens[middle] <= row ? seq : end) = middle;
  }
  const int64_t token = row - p.cu_seq_lens[seq];
  const int64_t block = p.block_table[seq * p.table_stride + token / p.block_size], offset = token % p.block_size;
  const int64_t warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  for (int64_t item = warp; item < 2 * p.kv_heads; item += kMoveThreads / kWarpLanes) {
    const Transfer& t = p.transfers[item / p.kv_heads];
    const int64_t head = item % p.kv_heads, bytes = bytes_of(t.rows.element);
    char* to = t.rows.data + row * t.rows.row_stride + head * t.rows.head_stride;
    const char* from =
        t.cache.data + block * t.cache.block_stride + head * t.cache.head_stride + offset * t.cache.token_stride;
    if (!is_8bit(t.element)) {
      copy_bytes(to, from, t.cache.dim * bytes, lane, kWarpLanes);
      continue;
    }
    const float scale = t.cache.scale_of(head);
    for (int64_t d = lane; d < t.cache.dim; d += kWarpLanes)
      store_element(t.rows.element, to + d * bytes, load_element(t.element, from + d) * scale);
  }
}

// Tensors whose blocks have one shape.
struct CopyArguments {
  BlockShape shape;
  const int32_t* cells;
  int64_t cell_stride;
  int64_t source_stride, target_stride;
  int num_tensors;
  const char* sources[kMaxCopyTensors];
  char* targets[kMaxCopyTensors];
};

// Start of run `index` in a block with these strides.
LOOSELEAF_DEVICE int64_t run_offset(const BlockShape& shape, const int64_t* strides, int64_t index) {
  int64_t offset = 0;
  for (int d = shape.num_dims - 1; d >= 0; --d) {
    offset += index % shape.sizes[d] * strides[d];
    index /= shape.sizes[d];
  }
  return offset;
}

__global__ void __launch_bounds__(kMoveThreads) copy_kernel(const __grid_constant__ CopyArguments p) {
  const int64_t source = p.cells[blockIdx.x * p.cell_stride], target = p.cells[blockIdx.x * p.cell_stride + 1];
  if (source < 0) return;
  const char* from = p.sources[blockIdx.y] + source * p.source_stride;
  char* to = p.targets[blockIdx.y] + target * p.target_stride;
  if (p.shape.num_dims == 0) {
    copy_bytes(to, from, p.shape.run_bytes, threadIdx.x, kMoveThreads);
    return;
  }
  int64_t num_runs = 1;
  for (int d = 0; d < p.shape.num_dims; ++d) num_runs *= p.shape.sizes[d];
  for (int64_t run = threadIdx.x / kWarpLanes; run < num_runs; run += kMoveThreads / kWarpLanes)
    copy_bytes(to + run_offset(p.shape, p.shape.target_strides, run), from + run_offset(p.shape, p.shape.source_strides, run),
               p.shape.run_bytes, threadIdx.x % kWarpLanes, kWarpLanes);
}

__global__ void __launch_bounds__(kMoveThreads) merge_kernel(const __grid_constant__ MergeArguments m) {
  const int64_t item = int64_t{blockIdx.x} * (kMoveThreads / kWarpLanes) + threadIdx.x / kWarpLanes;
  if (item >= m.num_rows * m.q_heads) return;
  const int64_t row = item / m.q_heads, head = item % m.q_heads, lane = threadIdx.x % kWarpLanes;
  const float a = m.lse_a[row * m.lse_a_stride + head], b = m.lse_b[row * m.lse_b_stride + head];
  const float largest = a > b ? a : b;
  const float reference = largest > -HUGE_VALF ? largest : 0.0f;
  const float weight_a = expf(a - reference), weight_b = expf(b - reference), total = weight_a + weight_b;
  const float share_a = total > 0.0f ? weight_a / total : 0.0f, share_b = total > 0.0f ? weight_b / total : 0.0f;
  if (lane == 0) m.lse[row * m.q_heads + head] = reference + logf(total);
  const int64_t bytes = bytes_of(m.element);
  const char* from_a = m.out_a + row * m.a_strides[0] + head * m.a_strides[1];
  const char* from_b = m.out_b + row * m.b_strides[0] + head * m.b_strides[1];
  char* to = m.out + row * m.out_strides[0] + head * m.out_strides[1];
  for (int64_t d = lane; d < m.dim; d += kWarpLanes) {  // a part without a share may hold anything
    const float part_a = share_a > 0.0f ? share_a * load_element(m.element, from_a + d * bytes) : 0.0f;
    const float part_b = share_b > 0.0f ? share_b * load_element(m.element, from_b + d * bytes) : 0.0f;
    store_element(m.element, to + d * bytes, part_a + part_b);
  }
}

}  // namespace looseleaf::cuda
