// Attention on tensor cores, for fp16 and bf16 caches: the query heads of a KV head are one matrix, so K and V are read once
// for all of them. Checked by tests/kernels/test_cuda_attend.py in the emulator.
//
// Operands are swapped: tokens and elements are the 16 rows of a product and query rows its 8 columns, since decode has few
// rows. S^T = K Q^T, then O^T = V^T P^T. A group of up to 8 rows is one column tile, up to 16 two.
//
// A block walks its stretch of the plan, one item after another. A warp takes every so-many-th slice of 16 tokens through
// a pipeline of its own: kStages slices of K and V in shared memory, filled by cp.async, and no barrier of the block inside the
// loop. Lane l holds the block id of cell base + l of the table, and that of the 30 cells after, so no load of a token waits for
// a load of the table. Q stays in registers as B fragments. Softmax is in base 2; sums are rescaled only where a row's
// largest score grows. Warps meet once for each item, to merge their states.
//
// Shared memory of a slice: 16 rows of kDim elements, where 16-byte chunk c of row r stands at c ^ (r % 8), so that the eight
// rows of each 8 x 8 matrix lie in different banks. Dims below kDim are filled with zeros, which cost no memory traffic.
#pragma once

#include "looseleaf/attend_state.h"
#include "looseleaf/expand.h"
#include "looseleaf/ptx.h"

namespace looseleaf::cuda {

constexpr int kSliceTokens = 16;
constexpr int kStages = 3;
constexpr int kColumnRows = 8;  // query rows of a column tile
constexpr int kWindowStep = kWarpLanes - 2;  // a slice touches up to three blocks: its first is among the first 30 cells

// T is what is multiplied, fp16 or bf16; Stored is what the cache holds: T, or an element of 8 bits.
template <class T_, int kDim_, int kTiles_, class Stored_ = T_>
struct MmaShape {
  using T = T_;
  using Stored = Stored_;
  static constexpr bool kIs8Bit = sizeof(Stored) == 1;
  static constexpr int kDim = kDim_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kRows = kTiles * kColumnRows;
  static constexpr int kWarps = kDim > 128 ? 2 : 4;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(Stored));
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kChunkElements = kDim / kChunks;
  static constexpr int kSteps = kDim / 16;  // products along a row
  static constexpr int kSliceBytes = kSliceTokens * kRowBytes;
  static constexpr int kMergeStride = kDim + 4;  // floats: rows of a merge lie in different banks
  static constexpr int kPipelineBytes = kWarps * kStages * 2 * kSliceBytes;
  static constexpr int kMergeBytes = kWarps * kRows * (kMergeStride + 2) * 4;
  static constexpr int kSharedBytes = kPipelineBytes > kMergeBytes ? kPipelineBytes : kMergeBytes;
};

// The block ids of a sequence, ahead of their use.
struct TableWindow {
  const int32_t* cells;
  int64_t num_cells;  // in use
  int64_t base;       // the cell of lane 0
  int32_t ids, next_ids;

  LOOSELEAF_DEVICE int32_t cell(int64_t index) const { return index < num_cells ? cells[index] : 0; }
  LOOSELEAF_DEVICE void open(int64_t first_cell, int64_t lane) {
    base = first_cell;
    ids = cell(base + lane);
    next_ids = cell(base + kWindowStep + lane);
  }
  LOOSELEAF_DEVICE void move_to(int64_t first_cell, int64_t lane) {
    while (first_cell >= base + kWindowStep) {
      base += kWindowStep;
      ids = next_ids;
      next_ids = cell(base + kWindowStep + lane);
    }
  }
};

template <class Shape>
LOOSELEAF_DEVICE int64_t element_at(int row, int chunk) {
  return row * (Shape::kRowBytes / 2) + ((chunk ^ (row & 7)) * 8);
}

// What a warp needs of a stretch to load its slices.
struct SliceSource {
  const char *k, *v;  // of the KV head
  int64_t first_token, end_token;
  TableWindow window;
};

// Begins to copy the slice at `first` into a stage; tokens outside the stretch become zeros.
template <class Shape>
LOOSELEAF_DEVICE void load_slice(const AttendArguments& a, SliceSource& source, int64_t first, Shared<uint16_t> k_slice,
                                 Shared<uint16_t> v_slice) {
  constexpr int kRowsAtOnce = kWarpLanes / Shape::kChunks;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int chunk = lane % Shape::kChunks;
  const int64_t first_cell = first / a.block_size, first_offset = first % a.block_size;
  source.window.move_to(first_cell, lane);
#pragma unroll
  for (int pass = 0; pass < kSliceTokens / kRowsAtOnce; ++pass) {
    const int row = pass * kRowsAtOnce + lane / Shape::kChunks;
    int64_t offset = first_offset + row;
    int place = static_cast<int>(first_cell - source.window.base);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // blocks hold at least 8 tokens
      if (offset >= a.block_size) {
        offset -= a.block_size;
        ++place;
      }
    }
    const int64_t block = __shfl_sync(kAllLanes, source.window.ids, place);
    const bool is_there = first + row >= source.first_token && first + row < source.end_token;
    const bool has_k = is_there && chunk * Shape::kChunkElements < a.k.dim;
    const bool has_v = is_there && chunk * Shape::kChunkElements < a.v.dim;
    const char* k = source.k + block * a.k.block_stride + offset * a.k.token_stride + chunk * 16;
    const char* v = source.v + block * a.v.block_stride + offset * a.v.token_stride + chunk * 16;
    copy_async(k_slice + element_at<Shape>(row, chunk), has_k ? k : source.k, has_k);
    copy_async(v_slice + element_at<Shape>(row, chunk), has_v ? v : source.v, has_v);
  }
}

// The state of a lane over its warp's slices: two query rows of each column tile.
template <class Shape>
struct MmaState {
  float sums[Shape::kTiles][Shape::kSteps][4];
  float largest[Shape::kTiles][2], weight[Shape::kTiles][2];

  LOOSELEAF_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < Shape::kSteps; ++i) sums[n][i][0] = sums[n][i][1] = sums[n][i][2] = sums[n][i][3] = 0.0f;
      largest[n][0] = largest[n][1] = minus_infinity();
      weight[n][0] = weight[n][1] = 0.0f;
    }
  }
};

// B fragments of the query rows: lane 4g + t holds elements 2t, 2t + 1 and 2t + 8, 2t + 9 of row g in each step of 16; for
// caches of 8 bits 4t to 4t + 3, since a matrix load gives a lane four neighbors. A sum knows no order.
template <class Shape>
LOOSELEAF_DEVICE void load_queries(const AttendArguments& a, const Item& item,
                                   uint32_t (&queries)[Shape::kTiles][Shape::kSteps][2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
  for (int n = 0; n < Shape::kTiles; ++n) {
    const int64_t r = n * kColumnRows + lane / 4;
    const bool is_there = r < item.num_rows;
    const Row row = row_of(a, item, is_there ? r : 0);
    const char* from = a.q + row.index * a.q_row_stride + row.head * a.q_head_stride;
#pragma unroll
    for (int i = 0; i < Shape::kSteps; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int d = i * 16 + (Shape::kIs8Bit ? lane % 4 * 4 + half * 2 : lane % 4 * 2 + half * 8);
        queries[n][i][half] = is_there && d < a.k.dim ? load_global<uint32_t>(from + 2 * d) : 0u;
      }
    }
  }
}

// Scores of a slice from its products, in base 2. `is_plain`: every row sees every token of it, and no option changes a score.
template <class Shape>
LOOSELEAF_DEVICE void finish_scores(const AttendArguments& a, const Item& item, int64_t first, bool is_plain, float scale,
                                    float (&scores)[Shape::kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  if (is_plain) {
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] *= scale * kLog2E;
    return;
  }
#pragma unroll
  for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t r = n * kColumnRows + lane % 4 * 2 + j;
      const bool is_there = r < item.num_rows;
      const Row row = row_of(a, item, is_there ? r : 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& score = scores[n][2 * half + j];
        score = is_there ? score_of(a, row, first + lane / 4 + 8 * half, score, scale) : minus_infinity();
      }
    }
  }
}

// S^T += K Q^T.
template <class Shape>
LOOSELEAF_DEVICE void multiply_keys(Shared<uint16_t> k_slice, const uint32_t (&queries)[Shape::kTiles][Shape::kSteps][2],
                                    float (&scores)[Shape::kTiles][4]) {
  using T = typename Shape::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  constexpr int kLoads = Shape::kIs8Bit ? Shape::kSteps / 2 : Shape::kSteps;  // each of two chunks of 16 tokens
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    uint32_t keys[4];
    load_matrices(keys, k_slice + element_at<Shape>(lane % 16, 2 * i + lane / 16));
    if constexpr (Shape::kIs8Bit) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t low[2], high[2];  // of tokens g and g + 8
        expand<T>(typename Shape::Stored{}, keys[2 * step], low);
        expand<T>(typename Shape::Stored{}, keys[2 * step + 1], high);
        const uint32_t rows[4] = {low[0], high[0], low[1], high[1]};
#pragma unroll
        for (int n = 0; n < Shape::kTiles; ++n) multiply_matrices(T{}, scores[n], rows, queries[n][2 * i + step]);
      }
    } else {
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) multiply_matrices(T{}, scores[n], keys, queries[n][i]);
    }
  }
}

// O^T += V^T P^T. Of caches of 8 bits a transposed matrix holds elements 2g and 2g + 1 side by side: row g of a product is
// the first of them and row g + 8 the second.
template <class Shape>
LOOSELEAF_DEVICE void add_values(Shared<uint16_t> v_slice, const uint32_t (&shares)[Shape::kTiles][2],
                                 MmaState<Shape>& state) {
  using T = typename Shape::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  if constexpr (Shape::kIs8Bit) {
#pragma unroll
    for (int i = 0; i < Shape::kSteps / 2; ++i) {
      uint32_t values[4];
      load_matrices_transposed(values, v_slice + element_at<Shape>(lane % 16, 2 * i + lane / 16));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t first[2], second[2];  // of tokens 2t, 2t + 1 and 2t + 8, 2t + 9
        expand<T>(typename Shape::Stored{}, permute_bytes(values[2 * step], 0u, 0x3120u), first);
        expand<T>(typename Shape::Stored{}, permute_bytes(values[2 * step + 1], 0u, 0x3120u), second);
        const uint32_t rows[4] = {first[0], first[1], second[0], second[1]};
#pragma unroll
        for (int n = 0; n < Shape::kTiles; ++n) multiply_matrices(T{}, state.sums[n][2 * i + step], rows, shares[n]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < Shape::kSteps; ++i) {
      uint32_t values[4];
      load_matrices_transposed(values, v_slice + element_at<Shape>(lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) multiply_matrices(T{}, state.sums[n][i], values, shares[n]);
    }
  }
}

// Adds a slice in shared memory to the state.
template <class Shape>
LOOSELEAF_DEVICE void attend_slice(const AttendArguments& a, const Item& item, int64_t first, bool is_plain, float scale,
                                   const uint32_t (&queries)[Shape::kTiles][Shape::kSteps][2], Shared<uint16_t> k_slice,
                                   Shared<uint16_t> v_slice, MmaState<Shape>& state) {
  using T = typename Shape::T;
  float scores[Shape::kTiles][4] = {};
  multiply_keys<Shape>(k_slice, queries, scores);
  finish_scores<Shape>(a, item, first, is_plain, scale, scores);
  uint32_t shares[Shape::kTiles][2];
#pragma unroll
  for (int n = 0; n < Shape::kTiles; ++n) {
    float top[2], reference[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      top[j] = fmaxf(scores[n][j], scores[n][2 + j]);
#pragma unroll
      for (int bit = 4; bit < kWarpLanes; bit *= 2) top[j] = fmaxf(top[j], __shfl_xor_sync(kAllLanes, top[j], bit));
      top[j] = fmaxf(top[j], state.largest[n][j]);
      reference[j] = top[j] == minus_infinity() ? 0.0f : top[j];
    }
    if (__any_sync(kAllLanes, top[0] > state.largest[n][0] || top[1] > state.largest[n][1])) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float rescale = exp2_fast(state.largest[n][j] - reference[j]);  // exactly 1 for a row that did not grow
        state.weight[n][j] *= rescale;
        state.largest[n][j] = top[j];
#pragma unroll
        for (int i = 0; i < Shape::kSteps; ++i) {
          state.sums[n][i][j] *= rescale;
          state.sums[n][i][2 + j] *= rescale;
        }
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[n][e] = exp2_fast(scores[n][e] - reference[e % 2]);
      state.weight[n][e % 2] += scores[n][e];
    }
    shares[n][0] = transpose_matrix(pack_pair(T{}, scores[n][0], scores[n][1]));
    shares[n][1] = transpose_matrix(pack_pair(T{}, scores[n][2], scores[n][3]));
  }
  add_values<Shape>(v_slice, shares, state);
}

// A warp's slices of a stretch.
template <class Shape>
LOOSELEAF_DEVICE void attend_slices(const AttendArguments& a, const Stretch& stretch, MmaState<Shape>& state) {
  const Item& item = stretch.item;
  const int64_t warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  uint32_t queries[Shape::kTiles][Shape::kSteps][2];
  load_queries<Shape>(a, item, queries);
  SliceSource source;
  source.k = a.k.data + item.kv_head * a.k.head_stride;
  source.v = a.v.data + item.kv_head * a.v.head_stride;
  source.first_token = stretch.first_token();
  source.end_token = stretch.end_token();
  constexpr int64_t kStride = Shape::kWarps * kSliceTokens;
  const int64_t begin = source.first_token / kSliceTokens * kSliceTokens + warp * kSliceTokens;
  source.window.cells = a.block_table + item.seq * a.table_stride;
  source.window.num_cells = (source.end_token + a.block_size - 1) / a.block_size;
  source.window.open(begin / a.block_size, lane);
  const float scale = a.scale * a.k.scale_of(item.kv_head);
  const bool has_option = a.softcap > 0.0f || a.alibi_slopes != nullptr;
  // What every row sees: from the last row's first key to the first row's end.
  const int64_t seen_first = row_of(a, item, item.num_rows - 1).first_key, seen_end = row_of(a, item, 0).end_key;
  const Shared<uint16_t> memory = shared_at<uint16_t>(warp * kStages * 2 * Shape::kSliceBytes);
  constexpr int64_t kSlice = Shape::kSliceBytes / 2;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    const int64_t first = begin + stage * kStride;
    if (first < source.end_token)
      load_slice<Shape>(a, source, first, memory + 2 * stage * kSlice, memory + (2 * stage + 1) * kSlice);
    commit_copies();
  }
  int stage = 0, load_stage = kStages - 1;
  for (int64_t first = begin; first < source.end_token; first += kStride) {
    const int64_t ahead = first + (kStages - 1) * kStride;
    if (ahead < source.end_token)
      load_slice<Shape>(a, source, ahead, memory + 2 * load_stage * kSlice, memory + (2 * load_stage + 1) * kSlice);
    commit_copies();
    wait_copies<kStages - 1>();
    __syncwarp();  // copies of the other lanes
    const bool is_plain = !has_option && first >= seen_first && first + kSliceTokens <= seen_end;
    attend_slice<Shape>(a, item, first, is_plain, scale, queries, memory + 2 * stage * kSlice,
                        memory + (2 * stage + 1) * kSlice, state);
    __syncwarp();  // the slice has been read: the next copy may overwrite it
    stage = stage + 1 == kStages ? 0 : stage + 1;
    load_stage = load_stage + 1 == kStages ? 0 : load_stage + 1;
  }
  wait_copies<0>();
}

// The states of all warps become the part's.
template <class Shape>
LOOSELEAF_DEVICE void merge_warps(const AttendArguments& a, const Plan& plan, const Stretch& stretch, MmaState<Shape>& state) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const Shared<float> sums = shared_at<float>(0);
  const Shared<float> states = sums + Shape::kWarps * Shape::kRows * Shape::kMergeStride;
  __syncthreads();  // every warp is done with its slices
#pragma unroll
  for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = warp * Shape::kRows + n * kColumnRows + lane % 4 * 2 + j;
      float weight = state.weight[n][j];
#pragma unroll
      for (int bit = 4; bit < kWarpLanes; bit *= 2) weight += __shfl_xor_sync(kAllLanes, weight, bit);
      if (lane < 4) {
        store_shared(states, 2 * row, state.largest[n][j]);
        store_shared(states, 2 * row + 1, weight);
      }
#pragma unroll
      for (int i = 0; i < Shape::kSteps; ++i) {
        const int64_t at = row * Shape::kMergeStride + i * 16 + lane / 4 * (Shape::kIs8Bit ? 2 : 1);
        store_shared(sums, at, state.sums[n][i][j]);
        store_shared(sums, at + (Shape::kIs8Bit ? 1 : 8), state.sums[n][i][2 + j]);
      }
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < stretch.item.num_rows * a.v.dim; i += Shape::kThreads) {
    const int64_t row = i / a.v.dim, d = i % a.v.dim;
    float largest = minus_infinity();
    for (int64_t w = 0; w < Shape::kWarps; ++w) largest = fmaxf(largest, load_shared(states, 2 * (w * Shape::kRows + row)));
    float sum = 0.0f, weight = 0.0f;
    for (int64_t w = 0; w < Shape::kWarps; ++w) {
      const int64_t at = w * Shape::kRows + row;
      const float share = weight_of_part(load_shared(states, 2 * at), largest);
      sum += share * load_shared(sums, at * Shape::kMergeStride + d);
      weight += share * load_shared(states, 2 * at + 1);
    }
    write_part(a, plan, stretch, row, d, sum, largest, weight);
  }
  __syncthreads();  // the next item's slices overwrite the states
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 2)
    attend_mma_kernel(const __grid_constant__ AttendArguments a, const __grid_constant__ Plan plan) {
  const int64_t end = stretch_begin(a, plan, int64_t{blockIdx.x} + 1);
  for (int64_t unit = stretch_begin(a, plan, blockIdx.x); unit < end;) {
    const Stretch stretch = stretch_at(a, plan, unit, end);
    MmaState<Shape> state;
    state.clear();
    attend_slices<Shape>(a, stretch, state);
    merge_warps<Shape>(a, plan, stretch, state);
    unit = stretch.item.first_unit + stretch.end;
  }
}

}  // namespace looseleaf::cuda
