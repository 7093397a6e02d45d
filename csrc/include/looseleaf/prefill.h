// Attention of many query rows: prefill, chunked or whole.
//
// Work: one call takes a tile of about kTileRows query rows of one KV head (all heads of its group, neighboring tokens)
// through all its keys, kTileKeys at a time. K is packed transposed, V as it is, both to fp32 in panels that one strip of
// `gemm_tile` reads front to back: packing is shared by all rows of the tile (its cost was not measured apart). Scores, weights and accumulators
// of the tile stay in L2. Keys behind the last row of a group of rows are not computed.
// Memory: row = token * group + head in group. Packed K: [panel of keys][dim in unit order][key]; packed V: [panel of
// dims][key][dim]. Keys past the end are packed as 0, never loaded.
// Checked by tests/kernels/test_grid.py.
#pragma once

#include "looseleaf/decode.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

constexpr int64_t kPanel = kGemmVectors * kLanes;
static_assert(kTileKeys % kPanel == 0 && kPanel <= kDimPadding && kDimPadding % kPanel == 0);

template <class T>
inline void pack_keys(const char* const* rows, int64_t offset, int64_t dim, int64_t first, int64_t count, float* packed,
                      int64_t depth) {
  using U = Unit<T>;
  for (int64_t t = 0; t < count; t += kLanes) {
    float* to = packed + (first + t) / kPanel * kPanel * depth + (first + t) % kPanel;
    for (int64_t d = 0; d < depth; d += U::kSize) {
      Vec block[U::kVectors][kLanes];
      for (int i = 0; i < kLanes; ++i) {
        Vec unit[U::kVectors];
        if (t + i >= count) {
          for (int v = 0; v < U::kVectors; ++v) unit[v] = broadcast(0.0f);
        } else {
          const T* from = reinterpret_cast<const T*>(rows[t + i] + offset) + d;
          if (dim - d >= U::kSize) {
            U::load(from, unit);
          } else {
            U::load_part(from, static_cast<int>(dim - d), unit);
          }
        }
        for (int v = 0; v < U::kVectors; ++v) block[v][i] = unit[v];
      }
      for (int v = 0; v < U::kVectors; ++v) {
        transpose(block[v]);
        for (int i = 0; i < kLanes; ++i) store(to + (d + v * kLanes + i) * kPanel, block[v][i]);
      }
    }
  }
}

template <class T>
inline void pack_values(const char* const* rows, int64_t offset, int64_t dim, int64_t first, int64_t count, float* packed) {
  using U = Unit<T>;
  for (int64_t t = 0; t < count; ++t) {
    const T* from = reinterpret_cast<const T*>(rows[t] + offset);
    for (int64_t d = 0; d < dim; d += U::kSize) {
      Vec unit[U::kVectors];
      if (dim - d >= U::kSize) {
        U::load(from + d, unit);
      } else {
        U::load_part(from + d, static_cast<int>(dim - d), unit);
      }
      for (int v = 0; v < U::kVectors; ++v) {
        const int64_t at = d + v * kLanes;
        store(packed + (at / kPanel * kTileKeys + first + t) * kPanel + at % kPanel, unit[v]);
      }
    }
  }
}

template <bool kAdd>
LOOSELEAF_NOINLINE void gemm_rows(int vectors, float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b,
                      int64_t depth) {
  switch (vectors < kGemmVectors ? vectors : kGemmVectors) {
    case 1:
      return gemm_tile<kGemmRows, 1, kAdd>(c, c_stride, a, a_stride, b, kPanel, depth);
    case 2:
      return gemm_tile<kGemmRows, 2, kAdd>(c, c_stride, a, a_stride, b, kPanel, depth);
    case 3:
      return gemm_tile<kGemmRows, kGemmVectors < 3 ? kGemmVectors : 3, kAdd>(c, c_stride, a, a_stride, b, kPanel, depth);
    default:
      return gemm_tile<kGemmRows, kGemmVectors, kAdd>(c, c_stride, a, a_stride, b, kPanel, depth);
  }
}

template <class T>
void prefill(const AttendArguments& a, const Tile& work, char* scratch, Unpack unpack) {
  const int64_t group = a.group(), num_rows = work.count * group;
  const int64_t padded_rows = (num_rows + kGemmRows - 1) / kGemmRows * kGemmRows;
  const int64_t k_stride = padded_dim(a.k.dim), v_stride = padded_dim(a.v.dim);
  const int64_t depth = (a.k.dim + Unit<T>::kSize - 1) / Unit<T>::kSize * Unit<T>::kSize;
  float* q = reinterpret_cast<float*>(scratch);
  float* scores = q + padded_rows * k_stride;
  float* keys = scores + padded_rows * kTileKeys;
  float* values = keys + kTileKeys * k_stride;
  float* sums = values + kTileKeys * v_stride;
  float* lane_sums = sums + padded_rows * v_stride;
  float* largest = lane_sums + padded_rows * kStateLanes;
  float* tile = largest + (padded_rows + 15) / 16 * 16;
  const int64_t tile_stride = k_stride > v_stride ? k_stride : v_stride;
  const char* tile_rows[kStepTokens];
  for (int64_t t = 0; t < kStepTokens; ++t) tile_rows[t] = reinterpret_cast<const char*>(tile + t * tile_stride);

  load_queries<T>(a, a.first_row(work.seq) + work.first, work.count, work.kv_head, q, k_stride);
  std::memset(q + num_rows * k_stride, 0, static_cast<size_t>((padded_rows - num_rows) * k_stride) * sizeof(float));
  std::memset(sums, 0, static_cast<size_t>(padded_rows * (v_stride + kStateLanes)) * sizeof(float));
  for (int64_t r = 0; r < padded_rows; ++r) largest[r] = kLowest;

  const auto position_of = [&](int64_t row) {
    return a.position(work.seq, work.first + (row < num_rows ? row : num_rows - 1) / group);
  };
  const int64_t first_key = a.first_key(position_of(0));
  const int64_t end_key = a.end_key(work.seq, position_of(num_rows - 1));
  const int64_t k_offset = work.kv_head * a.k.head_stride, v_offset = work.kv_head * a.v.head_stride;
  for (int64_t first = first_key; first < end_key; first += kTileKeys) {
    const int64_t count = end_key - first < kTileKeys ? end_key - first : kTileKeys;
    for (int64_t done = 0; done < count; done += kStepTokens) {
      Step step;
      locate(a, work.seq, first + done, first + count, &step);
      if (unpack == nullptr) {
        pack_keys<T>(step.k, k_offset, a.k.dim, done, step.count, keys, depth);
        pack_values<T>(step.v, v_offset, a.v.dim, done, step.count, values);
      } else {
        unpack(step.k, k_offset, a.k.dim, step.count, tile, tile_stride, nullptr, 0);
        pack_keys<T>(tile_rows, 0, a.k.dim, done, step.count, keys, depth);
        unpack(step.v, v_offset, a.v.dim, step.count, tile, tile_stride, nullptr, 0);
        pack_values<T>(tile_rows, 0, a.v.dim, done, step.count, values);
      }
    }
    // Keys that the rows from `row` on to the end of their group see, from `first` on.
    const auto seen = [&](int64_t row) {
      const int64_t end = a.end_key(work.seq, position_of(row + kGemmRows - 1)) - first;
      return end < count ? end : count;
    };
    for (int64_t panel = 0; panel < count; panel += kPanel)
      for (int64_t row = 0; row < padded_rows; row += kGemmRows)
        if (panel < seen(row))
          gemm_tile<kGemmRows, kGemmVectors, false>(scores + row * kTileKeys + panel, kTileKeys, q + row * k_stride, k_stride,
                                                    keys + panel * depth, kPanel, depth);
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t position = position_of(row), used = seen(row / kGemmRows * kGemmRows);
      if (used <= 0) continue;
      const int64_t end = a.end_key(work.seq, position) - first;
      float* to = sums + row * v_stride;
      weigh_row(scores + row * kTileKeys, used, a.first_key(position) - first, end < count ? end : count,
                static_cast<float>(position - first), row_options(a, work.kv_head * group + row % group, work.kv_head),
                largest + row, lane_sums + row * kStateLanes, to, v_stride);
    }
    for (int64_t d = 0; d < a.v.dim; d += kPanel) {
      const int64_t left = (a.v.dim - d + Unit<T>::kSize - 1) / Unit<T>::kSize * Unit<T>::kSize / kLanes;
      for (int64_t row = 0; row < padded_rows; row += kGemmRows)
        if (seen(row) > 0)
          gemm_rows<true>(static_cast<int>(left), sums + row * v_stride + d, v_stride, scores + row * kTileKeys, kTileKeys,
                          values + d * kTileKeys, seen(row));
    }
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t head = work.kv_head * group + row % group;
    const Normalized n = normalize(largest[row], sum(load(lane_sums + row * kStateLanes)),
                                   a.sinks == nullptr ? nullptr : a.sinks + head);
    store_row<T>(a, a.first_row(work.seq) + work.first + row / group, head, sums + row * v_stride, n,
                 a.v.scale_of(work.kv_head));
  }
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
