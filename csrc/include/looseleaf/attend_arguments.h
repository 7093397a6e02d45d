// What one call of `attend` is given: raw pointers, strides in bytes, options. No torch.
//
// Query rows are packed: sequence s owns rows [cu_query_lens[s], cu_query_lens[s + 1]) and they are its last tokens.
// Row r of sequence s stands at position seq_lens[s] - query_len + (r - cu_query_lens[s]).
#pragma once

#include "looseleaf/element.h"

namespace looseleaf {

// [blocks, kv_heads, block_size, dim] at data + block * block_stride + head * head_stride + token * token_stride,
// elements of the last dimension side by side.
struct CacheView {
  const char* data;
  int64_t block_stride, head_stride, token_stride;  // bytes
  int64_t dim;
  const float* scale;  // value = stored x scale[head * scale_step]; null without a scale
  int64_t scale_step;  // 0: one for all heads

  LOOSELEAF_INLINE float scale_of(int64_t head) const { return scale == nullptr ? 1.0f : scale[head * scale_step]; }
};

struct AttendArguments {
  const char* q;
  int64_t q_row_stride, q_head_stride;  // bytes
  Element element;                      // of q and out
  CacheView k, v;
  Element cache_element;
  const int32_t* block_table;
  int64_t table_stride;  // cells
  const int32_t* seq_lens;
  const int32_t* cu_query_lens;
  int64_t num_seqs, num_rows, q_heads, kv_heads, block_size;
  float scale;
  bool causal;
  int64_t window;  // 0: none
  float softcap;   // 0: none
  const float* sinks;
  const float* alibi_slopes;
  bool batch_invariant;
  char* out;
  int64_t out_row_stride, out_head_stride;  // bytes
  float* lse;                               // null: not wanted
  int64_t lse_row_stride;                   // floats; heads side by side

  LOOSELEAF_INLINE int64_t group() const { return q_heads / kv_heads; }
  LOOSELEAF_INLINE int64_t first_row(int64_t seq) const { return cu_query_lens[seq]; }
  LOOSELEAF_INLINE int64_t query_len(int64_t seq) const { return cu_query_lens[seq + 1] - cu_query_lens[seq]; }
  LOOSELEAF_INLINE int64_t position(int64_t seq, int64_t token) const { return seq_lens[seq] - query_len(seq) + token; }

  // Keys [first_key, end_key) are those that a row at this position sees; empty where end_key <= first_key.
  LOOSELEAF_INLINE int64_t first_key(int64_t position) const {
    return window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
  }
  LOOSELEAF_INLINE int64_t end_key(int64_t seq, int64_t position) const { return causal ? position + 1 : seq_lens[seq]; }
};

// The largest of padded dims: rows of floats in scratch memory are multiples of this.
constexpr int64_t kDimPadding = 64;
LOOSELEAF_INLINE int64_t padded_dim(int64_t dim) { return (dim + kDimPadding - 1) / kDimPadding * kDimPadding; }

}  // namespace looseleaf
