// The operators that move tokens and blocks: write, gather, copy_blocks, swap_blocks, merge_states.
#include <algorithm>
#include <vector>

#include "cpu/moves.h"
#include "library.h"
#include "tensor_view.h"

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
  const int64_t* slots = static_cast<const int64_t*>(slot_mapping.data());
  for (int64_t i = 0; i < num_tokens; ++i)
    LOOSELEAF_CHECK(slots[i] >= -1 && slots[i] < num_slots, "slot_mapping[", i, "] must be in -1 to ", num_slots - 1,
                    " (-1 (skip) or a slot of the cache), was ", slots[i]);
  if (num_tokens == 0) return;
  const Transfer transfers[2] = {transfer_of(k, k_cache, k_factor, k_step, true),
                                 transfer_of(v, v_cache, v_factor, v_step, true)};
  write(transfers, 2, slots, num_tokens, k_cache.sizes[1], k_cache.sizes[2], torch_threads());
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
  const int32_t* sums = static_cast<const int32_t*>(cu_seq_lens.data());
  const int32_t* table = static_cast<const int32_t*>(block_table.data());
  LOOSELEAF_CHECK(sums[0] == 0, "cu_seq_lens[0] must be 0, was ", sums[0]);
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t len = int64_t{sums[seq + 1]} - sums[seq];
    LOOSELEAF_CHECK(len >= 0, "cu_seq_lens must never fall, went from ", sums[seq], " to ", sums[seq + 1]);
    LOOSELEAF_CHECK(len <= block_table.sizes[1] * block_size, "the lengths in cu_seq_lens[", seq, "] must be at most ",
                    block_table.sizes[1] * block_size, " (the columns of block_table x the block size), was ", len);
    for (int64_t c = 0; c < (len + block_size - 1) / block_size; ++c) {
      const int32_t block = table[seq * block_table.strides[0] + c];
      LOOSELEAF_CHECK(block >= 0 && block < num_blocks, "block_table[", seq, ", ", c,
                      "] is in use and must name a block, 0 to ", num_blocks - 1, ", was ", block);
    }
  }
  LOOSELEAF_CHECK(sums[num_seqs] <= k_out.sizes[0], "cu_seq_lens[-1] must be at most ", k_out.sizes[0],
                  ", the rows of k_out, was ", sums[num_seqs]);
  const Transfer transfers[2] = {transfer_of(k_out, k_cache, k_factor, k_step, false),
                                 transfer_of(v_out, v_cache, v_factor, v_step, false)};
  gather(transfers, 2, table, block_table.strides[0], sums, num_seqs, k_cache.sizes[1], block_size, torch_threads());
}

std::vector<View> views_of(const char* name, const std::vector<Tensor>& tensors) {
  std::vector<View> views;
  for (const Tensor& tensor : tensors) {
    views.emplace_back(name, tensor);
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

using Pair = std::pair<int64_t, int64_t>;

// Each pair names a block on either side, and no destination stands twice.
void check_pairs(const std::vector<Pair>& pairs, int64_t num_sources, int64_t num_targets) {
  std::vector<int64_t> targets;
  for (const Pair& pair : pairs) {
    LOOSELEAF_CHECK(pair.first >= 0 && pair.first < num_sources, "block_mapping[:, 0] must be in 0 to ", num_sources - 1,
                    " (a block of the source), was ", pair.first);
    LOOSELEAF_CHECK(pair.second >= 0 && pair.second < num_targets, "block_mapping[:, 1] must be in 0 to ", num_targets - 1,
                    " (a block of the destination), was ", pair.second);
    targets.push_back(pair.second);
  }
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  LOOSELEAF_CHECK(twice == targets.end(), "block_mapping must name a destination once, ", *twice, " stands twice");
}

void copy_pairs(const std::vector<View>& sources, const std::vector<View>& targets, const std::vector<Pair>& pairs) {
  std::vector<BlockShape> shapes;
  std::vector<char*> addresses;
  for (size_t i = 0; i < sources.size(); ++i) {
    shapes.push_back(block_shape(sources[i].dim - 1, sources[i].sizes + 1, sources[i].strides + 1, targets[i].strides + 1,
                                 sources[i].bytes()));
    addresses.push_back(static_cast<char*>(targets[i].mutable_data()));
  }
  const int64_t num_tensors = static_cast<int64_t>(sources.size()), num_pairs = static_cast<int64_t>(pairs.size());
  torch_threads()(num_tensors, [&](int64_t i) {
    const char* from = static_cast<const char*>(sources[i].data());
    for (int64_t p = 0; p < num_pairs; ++p)
      copy_block(shapes[i], from + pairs[p].first * sources[i].stride_bytes(0),
                 addresses[i] + pairs[p].second * targets[i].stride_bytes(0));
  });
}

void copy_blocks_op(std::vector<Tensor> caches, const Tensor& block_mapping_) {
  const std::vector<View> views = views_of("caches", caches);
  const View block_mapping("block_mapping", block_mapping_);
  block_mapping.check_type(block_mapping.type == ScalarType::Int, "Int");
  block_mapping.check_shape({-1, 2}, "[copies, 2]");
  const int32_t* cells = static_cast<const int32_t*>(block_mapping.data());
  std::vector<Pair> pairs;
  std::vector<int64_t> sources;
  for (int64_t i = 0; i < block_mapping.sizes[0]; ++i) {
    const int64_t source = cells[i * block_mapping.strides[0]], target = cells[i * block_mapping.strides[0] + 1];
    if (source == -1 && target == -1) continue;
    LOOSELEAF_CHECK(source >= 0 && target >= 0, "block_mapping[", i, "] must be two blocks or -1 twice, was [", source, ", ",
                    target, "]");
    pairs.emplace_back(source, target);
    sources.push_back(source);
  }
  if (views.empty()) return;
  check_pairs(pairs, least_blocks(views), least_blocks(views));
  std::sort(sources.begin(), sources.end());
  for (const Pair& pair : pairs)
    LOOSELEAF_CHECK(!std::binary_search(sources.begin(), sources.end(), pair.second),
                    "block_mapping must not name a block as source and as destination, ", pair.second, " is both");
  if (!pairs.empty()) copy_pairs(views, views, pairs);
}

void swap_blocks_op(std::vector<Tensor> src, std::vector<Tensor> dst, const Tensor& block_mapping_) {
  const std::vector<View> sources = views_of("src", src), targets = views_of("dst", dst);
  LOOSELEAF_CHECK(sources.size() == targets.size(), "dst must have as many tensors as src, ", sources.size(), ", had ",
                  targets.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    targets[i].check_type(targets[i].type == sources[i].type, "of the dtype of src");
    LOOSELEAF_CHECK(targets[i].dim == sources[i].dim &&
                        std::equal(sources[i].sizes + 1, sources[i].sizes + sources[i].dim, targets[i].sizes + 1),
                    "dst[", i, "] must have blocks of the shape of src[", i, "], was ", targets[i].shape());
  }
  const View block_mapping("block_mapping", block_mapping_);
  block_mapping.check_type(block_mapping.type == ScalarType::Long, "Long");
  block_mapping.check_shape({-1, 2}, "[copies, 2]");
  const int64_t* cells = static_cast<const int64_t*>(block_mapping.data());
  std::vector<Pair> pairs;
  for (int64_t i = 0; i < block_mapping.sizes[0]; ++i)
    pairs.emplace_back(cells[i * block_mapping.strides[0]], cells[i * block_mapping.strides[0] + 1]);
  if (sources.empty()) return;
  check_pairs(pairs, least_blocks(sources), least_blocks(targets));
  if (!pairs.empty()) copy_pairs(sources, targets, pairs);
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
  merge_states(arguments, torch_threads());
  return {out, lse};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CPU, library) {
  library.impl("write", TORCH_BOX(&write_op));
  library.impl("gather", TORCH_BOX(&gather_op));
  library.impl("copy_blocks", TORCH_BOX(&copy_blocks_op));
  library.impl("swap_blocks", TORCH_BOX(&swap_blocks_op));
  library.impl("merge_states", TORCH_BOX(&merge_states_op));
}

}  // namespace looseleaf
