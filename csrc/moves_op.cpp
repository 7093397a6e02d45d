// The operators that move tokens and blocks: write, gather, copy_blocks, swap_blocks, merge_states.
#include <algorithm>
#include <vector>

#include "backend.h"
#include "block_shape.h"

namespace looseleaf {
namespace {

CacheView cache_view(const View& cache, const float* scale, int64_t scale_step) {
  return {static_cast<const char*>(cache.data()), cache.stride_bytes(0), cache.stride_bytes(1), cache.stride_bytes(2),
          cache.sizes[3], scale, scale_step};
}

// K or V of a call: the tokens' rows and the cache, one of them to be written.
Transfer transfer_of(const View& rows, const View& cache, const float* scale, int64_t scale_step, bool is_write) {
  Transfer transfer = {};
  transfer.cache = cache_view(cache, scale, scale_step);
  transfer.element = element_of(cache.type);
  transfer.cache_data = is_write ? static_cast<char*>(cache.mutable_data()) : nullptr;
  char* data = is_write ? const_cast<char*>(static_cast<const char*>(rows.data())) : static_cast<char*>(rows.mutable_data());
  transfer.rows = {data, rows.stride_bytes(0), rows.stride_bytes(1), element_of(rows.type)};
  return transfer;
}

void write_op(const Tensor& k_, const Tensor& v_, const Tensor& k_cache_, const Tensor& v_cache_, const Tensor& slot_mapping_,
              std::optional<Tensor> k_scale, std::optional<Tensor> v_scale) {
  const View k_cache("k_cache", k_cache_), v_cache("v_cache", v_cache_), k("k", k_), v("v", v_);
  const View slot_mapping("slot_mapping", slot_mapping_);
  check_caches(k_cache, v_cache);
  k.check_type(is_float(k.type), "Float or Half or BFloat16");
  k.check_shape({-1, k_cache.sizes[1], k_cache.sizes[3]}, "[tokens, kv_heads, head_dim] of k_cache");
  v.check_type(v.type == k.type, "of the dtype of k");
  v.check_shape({k.sizes[0], k_cache.sizes[1], v_cache.sizes[3]}, "[tokens, kv_heads, v_head_dim] of k and v_cache");
  slot_mapping.check_type(slot_mapping.type == ScalarType::Long, "Long");
  slot_mapping.check_shape({k.sizes[0]}, "[tokens]");
  check_cache_type(k_cache, k.type, "k");
  int64_t k_step, v_step;
  const float* k_factor = check_scale("k_scale", k_scale, k_cache, &k_step);
  const float* v_factor = check_scale("v_scale", v_scale, k_cache, &v_step);
  const int64_t num_tokens = k.sizes[0], num_slots = k_cache.sizes[0] * k_cache.sizes[2];
  backend::Call call(k_cache_);
  const int64_t* slots = static_cast<const int64_t*>(call.readable(slot_mapping.data(), 8 * num_tokens));
  for (int64_t i = 0; i < num_tokens && slots != nullptr; ++i)
    LOOSELEAF_CHECK(slots[i] >= -1 && slots[i] < num_slots, "slot_mapping[", i, "] must be in -1 to ", num_slots - 1,
                    " (-1 (skip) or a slot of the cache), was ", slots[i]);
  if (num_tokens == 0) return;
  const Transfer transfers[2] = {transfer_of(k, k_cache, k_factor, k_step, true),
                                 transfer_of(v, v_cache, v_factor, v_step, true)};
  backend::write(call, transfers, static_cast<const int64_t*>(slot_mapping.data()), num_tokens, k_cache.sizes[1],
                 k_cache.sizes[2]);
}

// Values: prefix sums, and the ids in the cells that will be read.
void check_tables(backend::Call& call, const View& block_table, const View& cu_seq_lens, int64_t num_blocks,
                  int64_t block_size, int64_t num_rows) {
  const int64_t num_seqs = block_table.sizes[0], stride = block_table.strides[0];
  const int64_t num_cells = num_seqs == 0 ? 0 : (num_seqs - 1) * stride + block_table.sizes[1];
  const int32_t* sums = static_cast<const int32_t*>(call.readable(cu_seq_lens.data(), 4 * (num_seqs + 1)));
  const int32_t* table = static_cast<const int32_t*>(call.readable(block_table.data(), 4 * num_cells));
  if (sums == nullptr) return;
  LOOSELEAF_CHECK(sums[0] == 0, "cu_seq_lens[0] must be 0, was ", sums[0]);
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t len = int64_t{sums[seq + 1]} - sums[seq];
    LOOSELEAF_CHECK(len >= 0, "cu_seq_lens must never fall, went from ", sums[seq], " to ", sums[seq + 1]);
    LOOSELEAF_CHECK(len <= block_table.sizes[1] * block_size, "the lengths in cu_seq_lens[", seq, "] must be at most ",
                    block_table.sizes[1] * block_size, " (the columns of block_table x the block size), was ", len);
    for (int64_t c = 0; c < (len + block_size - 1) / block_size; ++c) {
      const int32_t block = table[seq * stride + c];
      LOOSELEAF_CHECK(block >= 0 && block < num_blocks, "block_table[", seq, ", ", c,
                      "] is in use and must name a block, 0 to ", num_blocks - 1, ", was ", block);
    }
  }
  LOOSELEAF_CHECK(sums[num_seqs] <= num_rows, "cu_seq_lens[-1] must be at most ", num_rows,
                  ", the rows of k_out, was ", sums[num_seqs]);
}

void gather_op(const Tensor& k_cache_, const Tensor& v_cache_, const Tensor& block_table_, const Tensor& cu_seq_lens_,
               const Tensor& k_out_, const Tensor& v_out_, std::optional<Tensor> k_scale, std::optional<Tensor> v_scale) {
  const View k_cache("k_cache", k_cache_), v_cache("v_cache", v_cache_), k_out("k_out", k_out_), v_out("v_out", v_out_);
  const View block_table("block_table", block_table_), cu_seq_lens("cu_seq_lens", cu_seq_lens_);
  check_caches(k_cache, v_cache);
  block_table.check_type(block_table.type == ScalarType::Int, "Int");
  block_table.check_shape({-1, -1}, "[seqs, columns]");
  const int64_t num_seqs = block_table.sizes[0], block_size = k_cache.sizes[2], num_blocks = k_cache.sizes[0];
  cu_seq_lens.check_type(cu_seq_lens.type == ScalarType::Int, "Int");
  cu_seq_lens.check_shape({num_seqs + 1}, "[seqs + 1]");
  k_out.check_type(is_float(k_out.type), "Float or Half or BFloat16");
  k_out.check_shape({-1, k_cache.sizes[1], k_cache.sizes[3]}, "[tokens, kv_heads, head_dim] of k_cache");
  v_out.check_type(v_out.type == k_out.type, "of the dtype of k_out");
  v_out.check_shape({k_out.sizes[0], k_cache.sizes[1], v_cache.sizes[3]}, "[tokens, kv_heads, v_head_dim] of v_cache");
  check_cache_type(k_cache, k_out.type, "k_out");
  int64_t k_step, v_step;
  const float* k_factor = check_scale("k_scale", k_scale, k_cache, &k_step);
  const float* v_factor = check_scale("v_scale", v_scale, k_cache, &v_step);
  backend::Call call(k_cache_);
  check_tables(call, block_table, cu_seq_lens, num_blocks, block_size, k_out.sizes[0]);
  const Transfer transfers[2] = {transfer_of(k_out, k_cache, k_factor, k_step, false),
                                 transfer_of(v_out, v_cache, v_factor, v_step, false)};
  backend::gather(call, transfers, static_cast<const int32_t*>(block_table.data()), block_table.strides[0],
                  static_cast<const int32_t*>(cu_seq_lens.data()), num_seqs, k_out.sizes[0], k_cache.sizes[1], block_size);
}

std::vector<View> views_of(const char* name, const std::vector<Tensor>& tensors, Where where) {
  std::vector<View> views;
  for (const Tensor& tensor : tensors) {
    views.emplace_back(name, tensor, where);
    const View& view = views.back();
    LOOSELEAF_CHECK(view.dim >= 2 && view.dim <= BlockShape::kMaxDims, name, " must have the shape [blocks, ...], was ",
                    view.shape());
    LOOSELEAF_CHECK(view.last() <= 1 || view.strides[view.dim - 1] == 1, name, " must have a contiguous last dimension");
  }
  return views;
}

int64_t least_blocks(const std::vector<View>& views) {
  int64_t least = INT64_MAX;
  for (const View& view : views) least = std::min(least, view.sizes[0]);
  return least;
}

// Each pair names a block on either side, and no destination stands twice.
void check_pairs(const std::vector<BlockPair>& pairs, int64_t num_sources, int64_t num_targets) {
  std::vector<int64_t> targets;
  for (const BlockPair& pair : pairs) {
    LOOSELEAF_CHECK(pair.source >= 0 && pair.source < num_sources, "block_mapping[:, 0] must be in 0 to ", num_sources - 1,
                    " (a block of the source), was ", pair.source);
    LOOSELEAF_CHECK(pair.target >= 0 && pair.target < num_targets, "block_mapping[:, 1] must be in 0 to ", num_targets - 1,
                    " (a block of the destination), was ", pair.target);
    targets.push_back(pair.target);
  }
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  LOOSELEAF_CHECK(twice == targets.end(), "block_mapping must name a destination once, ", *twice, " stands twice");
}

std::vector<BlockTensors> block_tensors(const std::vector<View>& sources, const std::vector<View>& targets) {
  std::vector<BlockTensors> tensors;
  for (size_t i = 0; i < sources.size(); ++i)
    tensors.push_back({static_cast<const char*>(sources[i].data()), static_cast<char*>(targets[i].mutable_data()),
                       sources[i].stride_bytes(0), targets[i].stride_bytes(0),
                       block_shape(sources[i].dim - 1, sources[i].sizes + 1, sources[i].strides + 1, targets[i].strides + 1,
                                   sources[i].bytes())});
  return tensors;
}

// Values of the pairs of `copy_blocks`.
void check_copies(const int32_t* cells, int64_t stride, int64_t num_pairs, int64_t num_blocks) {
  std::vector<BlockPair> pairs;
  std::vector<int64_t> sources;
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t source = cells[i * stride], target = cells[i * stride + 1];
    if (source == -1 && target == -1) continue;
    LOOSELEAF_CHECK(source >= 0 && target >= 0, "block_mapping[", i, "] must be two blocks or -1 twice, was [", source, ", ",
                    target, "]");
    pairs.push_back({source, target});
    sources.push_back(source);
  }
  check_pairs(pairs, num_blocks, num_blocks);
  std::sort(sources.begin(), sources.end());
  for (const BlockPair& pair : pairs)
    LOOSELEAF_CHECK(!std::binary_search(sources.begin(), sources.end(), pair.target),
                    "block_mapping must not name a block as source and as destination, ", pair.target, " is both");
}

void copy_blocks_op(std::vector<Tensor> caches, const Tensor& block_mapping_) {
  const std::vector<View> views = views_of("caches", caches, Where::kDevice);
  const View block_mapping("block_mapping", block_mapping_);
  block_mapping.check_type(block_mapping.type == ScalarType::Int, "Int");
  block_mapping.check_shape({-1, 2}, "[copies, 2]");
  if (views.empty()) return;
  backend::Call call(block_mapping_);
  const int64_t num_pairs = block_mapping.sizes[0], stride = block_mapping.strides[0];
  const int64_t num_cells = num_pairs == 0 ? 0 : (num_pairs - 1) * stride + 2;
  const int32_t* cells = static_cast<const int32_t*>(call.readable(block_mapping.data(), 4 * num_cells));
  if (cells != nullptr) check_copies(cells, stride, num_pairs, least_blocks(views));
  if (num_pairs != 0)
    backend::copy_blocks(call, block_tensors(views, views), static_cast<const int32_t*>(block_mapping.data()), stride,
                         num_pairs);
}

void swap_blocks_op(std::vector<Tensor> src, std::vector<Tensor> dst, const Tensor& block_mapping_) {
  const std::vector<View> sources = views_of("src", src, Where::kAnywhere), targets = views_of("dst", dst, Where::kAnywhere);
  LOOSELEAF_CHECK(sources.size() == targets.size(), "dst must have as many tensors as src, ", sources.size(), ", had ",
                  targets.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    targets[i].check_type(targets[i].type == sources[i].type, "of the dtype of src");
    LOOSELEAF_CHECK(targets[i].dim == sources[i].dim &&
                        std::equal(sources[i].sizes + 1, sources[i].sizes + sources[i].dim, targets[i].sizes + 1),
                    "dst[", i, "] must have blocks of the shape of src[", i, "], was ", targets[i].shape());
  }
  const View block_mapping("block_mapping", block_mapping_, Where::kHost);
  block_mapping.check_type(block_mapping.type == ScalarType::Long, "Long");
  block_mapping.check_shape({-1, 2}, "[copies, 2]");
  const int64_t* cells = static_cast<const int64_t*>(block_mapping.data());
  std::vector<BlockPair> pairs;
  for (int64_t i = 0; i < block_mapping.sizes[0]; ++i)
    pairs.push_back({cells[i * block_mapping.strides[0]], cells[i * block_mapping.strides[0] + 1]});
  if (sources.empty()) return;
  check_pairs(pairs, least_blocks(sources), least_blocks(targets));
  if (pairs.empty()) return;
  backend::Call call(src[0].is_cpu() ? dst[0] : src[0]);
  backend::swap_blocks(call, block_tensors(sources, targets), pairs);
}

std::tuple<Tensor, Tensor> merge_states_op(const Tensor& out_a_, const Tensor& lse_a_, const Tensor& out_b_,
                                           const Tensor& lse_b_) {
  const View out_a("out_a", out_a_), lse_a("lse_a", lse_a_), out_b("out_b", out_b_), lse_b("lse_b", lse_b_);
  out_a.check_type(is_float(out_a.type), "Float or Half or BFloat16");
  out_a.check_shape({-1, -1, -1}, "[tokens, q_heads, head_dim]");
  out_b.check_type(out_b.type == out_a.type, "of the dtype of out_a");
  out_b.check_shape({out_a.sizes[0], out_a.sizes[1], out_a.sizes[2]}, "[tokens, q_heads, head_dim] of out_a");
  for (const View* lse : {&lse_a, &lse_b}) {
    lse->check_type(lse->type == ScalarType::Float, "Float");
    lse->check_shape({out_a.sizes[0], out_a.sizes[1]}, "[tokens, q_heads] of out_a");
  }
  Tensor out = torch::stable::new_empty(out_a_, {out_a.sizes[0], out_a.sizes[1], out_a.sizes[2]});
  Tensor lse = torch::stable::new_empty(out_a_, {out_a.sizes[0], out_a.sizes[1]}, ScalarType::Float);
  const View out_view("out", out);
  const MergeArguments arguments = {static_cast<const char*>(out_a.data()),
                                    static_cast<const char*>(out_b.data()),
                                    static_cast<char*>(out_view.mutable_data()),
                                    {out_a.stride_bytes(0), out_a.stride_bytes(1)},
                                    {out_b.stride_bytes(0), out_b.stride_bytes(1)},
                                    {out_view.stride_bytes(0), out_view.stride_bytes(1)},
                                    static_cast<const float*>(lse_a.data()),
                                    static_cast<const float*>(lse_b.data()),
                                    static_cast<float*>(lse.mutable_data_ptr()),
                                    lse_a.strides[0],
                                    lse_b.strides[0],
                                    out_a.sizes[0],
                                    out_a.sizes[1],
                                    out_a.sizes[2],
                                    element_of(out_a.type)};
  backend::Call call(out_a_);
  backend::merge_states(call, arguments);
  return {out, lse};
}

}  // namespace

LOOSELEAF_IMPLEMENT(library) {
  library.impl("write", TORCH_BOX(&write_op));
  library.impl("gather", TORCH_BOX(&gather_op));
  library.impl("copy_blocks", TORCH_BOX(&copy_blocks_op));
  library.impl("swap_blocks", TORCH_BOX(&swap_blocks_op));
  library.impl("merge_states", TORCH_BOX(&merge_states_op));
}

}  // namespace looseleaf
