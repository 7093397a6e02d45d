// The operators `attend` and `attend_out`: checks, then the driver on torch's threads.
#include <cmath>

#include "backend.h"

namespace looseleaf {
namespace {

struct Options {
  double scale;
  bool causal;
  std::optional<int64_t> window;
  double softcap;
  bool batch_invariant;
};

void check_options(const Options& options, int64_t max_query_len) {
  LOOSELEAF_CHECK(max_query_len >= 0, "max_query_len must be at least 0, was ", max_query_len);
  LOOSELEAF_CHECK(std::isfinite(static_cast<float>(options.scale)), "scale must as a float32 be finite, was ", options.scale);
  LOOSELEAF_CHECK(std::isfinite(options.softcap) && options.softcap >= 0.0, "softcap must be finite and at least 0, was ",
                  options.softcap);
  LOOSELEAF_CHECK(!options.window.has_value() || *options.window >= 1, "window must be at least 1, was ",
                  options.window.value_or(0));
}

// Values: prefix sums, lengths, and the ids in the cells that will be read.
void check_contents(backend::Call& call, AttendArguments a, int64_t max_query_len, int64_t num_blocks, int64_t columns) {
  const int64_t num_cells = a.num_seqs == 0 ? 0 : (a.num_seqs - 1) * a.table_stride + columns;
  a.cu_query_lens = static_cast<const int32_t*>(call.readable(a.cu_query_lens, 4 * (a.num_seqs + 1)));
  a.seq_lens = static_cast<const int32_t*>(call.readable(a.seq_lens, 4 * a.num_seqs));
  a.block_table = static_cast<const int32_t*>(call.readable(a.block_table, 4 * num_cells));
  if (a.cu_query_lens == nullptr) return;
  LOOSELEAF_CHECK(a.cu_query_lens[0] == 0, "cu_query_lens[0] must be 0, was ", a.cu_query_lens[0]);
  for (int64_t seq = 0; seq < a.num_seqs; ++seq) {
    const int64_t query_len = a.query_len(seq), len = a.seq_lens[seq];
    LOOSELEAF_CHECK(query_len >= 0, "cu_query_lens must never fall, went from ", a.cu_query_lens[seq], " to ",
                    a.cu_query_lens[seq + 1], " at [", seq + 1, "]");
    LOOSELEAF_CHECK(query_len <= max_query_len, "max_query_len must be at least the longest step of cu_query_lens, ",
                    query_len, ", was ", max_query_len);
    LOOSELEAF_CHECK(len >= 0 && len <= columns * a.block_size, "seq_lens[", seq, "] must be in 0 to ",
                    columns * a.block_size, " (the columns of block_table x the block size), was ", len);
  }
  const int64_t last = a.cu_query_lens[a.num_seqs];
  LOOSELEAF_CHECK(last <= a.num_rows, "cu_query_lens[-1] must be at most ", a.num_rows, ", the rows of q, was ", last);
  for (int64_t seq = 0; seq < a.num_seqs; ++seq) {
    if (a.query_len(seq) == 0) continue;
    const int32_t* cells = a.block_table + seq * a.table_stride;
    const int64_t end = (a.seq_lens[seq] + a.block_size - 1) / a.block_size;
    uint32_t worst = 0;
    const int64_t begin = a.first_key(a.position(seq, 0)) / a.block_size;
    for (int64_t c = begin; c < end; ++c) worst = std::max(worst, static_cast<uint32_t>(cells[c]));
    if (begin >= end || worst < static_cast<uint64_t>(num_blocks)) continue;
    for (int64_t c = begin; c < end; ++c)
      LOOSELEAF_CHECK(cells[c] >= 0 && cells[c] < num_blocks, "block_table[", seq, ", ", c,
                      "] is in use and must name a block, 0 to ", num_blocks - 1, ", was ", cells[c]);
  }
}

const float* per_head(const char* name, const std::optional<Tensor>& tensor, int64_t q_heads) {
  if (!tensor.has_value()) return nullptr;
  const View view(name, *tensor);
  view.check_type(view.type == ScalarType::Float, "Float");
  view.check_shape({q_heads}, "[q_heads]");
  return static_cast<const float*>(view.data());
}

CacheView cache_view(const View& cache) {
  return {static_cast<const char*>(cache.data()), cache.stride_bytes(0), cache.stride_bytes(1), cache.stride_bytes(2),
          cache.sizes[3], nullptr, 0};
}

void fill(const Tensor& q_, const Tensor& k_cache_, const Tensor& v_cache_, const Tensor& block_table_,
          const Tensor& seq_lens_, const Tensor& cu_query_lens_, int64_t max_query_len, const Options& options,
          const std::optional<Tensor>& sinks, const std::optional<Tensor>& alibi_slopes, const std::optional<Tensor>& k_scale,
          const std::optional<Tensor>& v_scale, const Tensor* out_, const std::optional<Tensor>& lse_, Tensor* new_out,
          Tensor* new_lse) {
  const View k_cache("k_cache", k_cache_), v_cache("v_cache", v_cache_), q("q", q_);
  check_caches(k_cache, v_cache);
  q.check_type(is_float(q.type), "Float or Half or BFloat16");
  q.check_shape({-1, -1, k_cache.sizes[3]}, "[tokens, q_heads, head_dim of k_cache]");
  const int64_t kv_heads = k_cache.sizes[1], q_heads = q.sizes[1];
  LOOSELEAF_CHECK(q_heads > 0 && q_heads % kv_heads == 0, "q must have a multiple of the caches' ", kv_heads,
                  " kv_heads as q_heads, had ", q_heads);
  check_cache_type(k_cache, q.type, "q");
  const View block_table("block_table", block_table_), seq_lens("seq_lens", seq_lens_);
  const View cu_query_lens("cu_query_lens", cu_query_lens_);
  block_table.check_type(block_table.type == ScalarType::Int, "Int");
  block_table.check_shape({-1, -1}, "[seqs, columns]");
  const int64_t num_seqs = block_table.sizes[0];
  seq_lens.check_type(seq_lens.type == ScalarType::Int, "Int");
  seq_lens.check_shape({num_seqs}, "[seqs]");
  cu_query_lens.check_type(cu_query_lens.type == ScalarType::Int, "Int");
  cu_query_lens.check_shape({num_seqs + 1}, "[seqs + 1]");
  check_options(options, max_query_len);

  AttendArguments a = {};
  a.element = element_of(q.type);
  a.cache_element = element_of(k_cache.type);
  a.k = cache_view(k_cache);
  a.v = cache_view(v_cache);
  a.k.scale = check_scale("k_scale", k_scale, k_cache, &a.k.scale_step);
  a.v.scale = check_scale("v_scale", v_scale, k_cache, &a.v.scale_step);
  a.q = static_cast<const char*>(q.data());
  a.q_row_stride = q.stride_bytes(0);
  a.q_head_stride = q.stride_bytes(1);
  a.block_table = static_cast<const int32_t*>(block_table.data());
  a.table_stride = block_table.strides[0];
  a.seq_lens = static_cast<const int32_t*>(seq_lens.data());
  a.cu_query_lens = static_cast<const int32_t*>(cu_query_lens.data());
  a.num_seqs = num_seqs;
  a.num_rows = q.sizes[0];
  a.q_heads = q_heads;
  a.kv_heads = kv_heads;
  a.block_size = k_cache.sizes[2];
  a.scale = static_cast<float>(options.scale);
  a.causal = options.causal;
  a.window = options.window.value_or(0);
  a.softcap = static_cast<float>(options.softcap);
  a.sinks = per_head("sinks", sinks, q_heads);
  a.alibi_slopes = per_head("alibi_slopes", alibi_slopes, q_heads);
  a.batch_invariant = options.batch_invariant;
  backend::Call call(q_);
  check_contents(call, a, max_query_len, k_cache.sizes[0], block_table.sizes[1]);

  const int64_t v_dim = v_cache.sizes[3];
  if (out_ == nullptr) {
    *new_out = torch::stable::new_empty(q_, {a.num_rows, q_heads, v_dim});
    *new_lse = torch::stable::new_empty(q_, {a.num_rows, q_heads}, ScalarType::Float);
  }
  const View out("out", out_ == nullptr ? *new_out : *out_);
  out.check_type(out.type == q.type, "of the dtype of q");
  out.check_shape({a.num_rows, q_heads, v_dim}, "[tokens, q_heads, v_head_dim]");
  const std::optional<View> lse = out_ == nullptr ? std::optional<View>(View("lse", *new_lse)) : view_of("lse", lse_);
  if (lse.has_value()) {
    lse->check_type(lse->type == ScalarType::Float, "Float");
    lse->check_shape({a.num_rows, q_heads}, "[tokens, q_heads]");
    a.lse = static_cast<float*>(lse->mutable_data());
    a.lse_row_stride = lse->strides[0];
  }
  a.out = static_cast<char*>(out.mutable_data());
  LOOSELEAF_CHECK(!out.overlaps(q), "out must not overlap the memory of q");
  LOOSELEAF_CHECK(!lse.has_value() || !out.overlaps(*lse), "out must not overlap the memory of lse");
  a.out_row_stride = out.stride_bytes(0);
  a.out_head_stride = out.stride_bytes(1);
  backend::attend(call, a, max_query_len);
}

std::tuple<Tensor, Tensor> attend_op(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
                                     const Tensor& seq_lens, const Tensor& cu_query_lens, int64_t max_query_len, double scale,
                                     bool causal, std::optional<int64_t> window, double softcap, std::optional<Tensor> sinks,
                                     std::optional<Tensor> alibi_slopes, std::optional<Tensor> k_scale,
                                     std::optional<Tensor> v_scale, bool batch_invariant) {
  Tensor out, lse;
  fill(q, k_cache, v_cache, block_table, seq_lens, cu_query_lens, max_query_len,
       {scale, causal, window, softcap, batch_invariant}, sinks, alibi_slopes, k_scale, v_scale, nullptr, std::nullopt, &out,
       &lse);
  return {out, lse};
}

void attend_out_op(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
                   const Tensor& seq_lens, const Tensor& cu_query_lens, int64_t max_query_len, double scale, bool causal,
                   std::optional<int64_t> window, double softcap, std::optional<Tensor> sinks,
                   std::optional<Tensor> alibi_slopes, std::optional<Tensor> k_scale, std::optional<Tensor> v_scale,
                   bool batch_invariant, const Tensor& out, std::optional<Tensor> lse) {
  fill(q, k_cache, v_cache, block_table, seq_lens, cu_query_lens, max_query_len,
       {scale, causal, window, softcap, batch_invariant}, sinks, alibi_slopes, k_scale, v_scale, &out, lse, nullptr, nullptr);
}

}  // namespace

LOOSELEAF_IMPLEMENT(library) {
  library.impl("attend", TORCH_BOX(&attend_op));
  library.impl("attend_out", TORCH_BOX(&attend_out_op));
}

}  // namespace looseleaf
