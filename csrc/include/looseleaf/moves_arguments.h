// What the operators that move tokens and blocks are given: raw pointers and strides in bytes. No torch.
#pragma once

#include "looseleaf/attend_arguments.h"

namespace looseleaf {

// Tokens outside a cache, [tokens, kv_heads, dim], for K or for V.
struct Rows {
  char* data;
  int64_t row_stride, head_stride;  // bytes
  Element element;
};

// What `write` and `gather` are given, once for K and once for V.
struct Transfer {
  Rows rows;
  CacheView cache;
  char* cache_data;  // as cache.data, writable
  Element element;   // of the cache
};

// The inner dimensions of a block in two tensors of the same shape, merged where both are dense.
struct BlockShape {
  static constexpr int kMaxDims = 8;
  int num_dims;  // outside the contiguous run
  int64_t sizes[kMaxDims], source_strides[kMaxDims], target_strides[kMaxDims];  // bytes
  int64_t run_bytes;
};

// Two tensors [blocks, ...] between which blocks are copied, or one that is both.
struct BlockTensors {
  const char* source;
  char* target;
  int64_t source_stride, target_stride;  // bytes, of blocks
  BlockShape shape;
};

struct BlockPair {
  int64_t source, target;
};

struct MergeArguments {
  const char *out_a, *out_b;
  char* out;
  int64_t a_strides[2], b_strides[2], out_strides[2];  // bytes, of tokens and heads
  const float *lse_a, *lse_b;
  float* lse;
  int64_t lse_a_stride, lse_b_stride;  // floats
  int64_t num_rows, q_heads, dim;
  Element element;
};

}  // namespace looseleaf
