// Moving tokens and blocks: write, gather, copy, swap, merge. One plain file for every processor: memory decides.
#pragma once

#include "looseleaf/attend_arguments.h"
#include "threads.h"

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

void write(const Transfer* transfers, int64_t num_transfers, const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
           int64_t block_size, const Threads& threads);

void gather(const Transfer* transfers, int64_t num_transfers, const int32_t* block_table, int64_t table_stride,
            const int32_t* cu_seq_lens, int64_t num_seqs, int64_t kv_heads, int64_t block_size, const Threads& threads);

// The inner dimensions of a block in two tensors of the same shape, merged where both are dense.
struct BlockShape {
  static constexpr int kMaxDims = 8;
  int num_dims;  // outside the contiguous run
  int64_t sizes[kMaxDims], source_strides[kMaxDims], target_strides[kMaxDims];  // bytes
  int64_t run_bytes;
};

BlockShape block_shape(int64_t num_dims, const int64_t* sizes, const int64_t* source_strides,
                       const int64_t* target_strides, int64_t element_bytes);
void copy_block(const BlockShape& shape, const char* source, char* target);

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

void merge_states(const MergeArguments& arguments, const Threads& threads);

}  // namespace looseleaf
