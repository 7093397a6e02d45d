// The kernels without torch, under the address and undefined-behavior sanitizers: every set that this processor has, over
// a grid of dtypes, dims, groups, block sizes, options and ragged lengths, on plain threads.
//
// Buffers are exactly as large as they have to be and dead slots are NaN, so that a read past a row's end is an address
// error and a read past a length is NaN in the result. Values are checked by the Python tests; here a result must be
// finite and a mean of equal values exact. Built and run by tests/kernels/test_sanitizers.py, and for Arm under qemu.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/attend.h"
#include "block_shape.h"
#include "cpu/moves.h"

namespace looseleaf {
namespace {

void run_threads(int64_t count, void (*task)(void* context, int64_t index), void* context) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) threads.emplace_back(task, context, i);
  for (std::thread& thread : threads) thread.join();
}

struct Case {
  Element element, cache_element;
  int64_t dim, v_dim, group, kv_heads, block_size;
  int option;  // bits: 1 window, 2 softcap, 4 sinks, 8 ALiBi, 16 not causal, 32 invariant
};

// Keys are 0 and every value of a token is `kValue`, so every result that sees a key is that value (with a sink: less).
constexpr float kValue = 2.0f;

bool run(const Case& c, const Kernels& kernels) {
  const std::vector<int32_t> lengths = {0, 1, static_cast<int32_t>(c.block_size), static_cast<int32_t>(c.block_size + 1), 300};
  const std::vector<int32_t> query_lens = {2, 1, 1, 3, 40};
  const int64_t bytes = bytes_of(c.cache_element), out_bytes = bytes_of(c.element), num_seqs = 5;
  int64_t columns = 0, num_blocks = 1;
  for (const int32_t length : lengths) {
    columns = std::max<int64_t>(columns, (length + c.block_size - 1) / c.block_size);
    num_blocks += (length + c.block_size - 1) / c.block_size;
  }
  std::vector<int32_t> table(num_seqs * columns, INT32_MAX), sums = {0};
  int32_t next = static_cast<int32_t>(num_blocks) - 1;
  const auto cache_of = [&](int64_t dim) {
    std::vector<char> cache(num_blocks * c.kv_heads * c.block_size * dim * bytes);
    for (size_t i = 0; i < cache.size(); i += bytes) store_element(c.cache_element, cache.data() + i, NAN);
    return cache;
  };
  std::vector<char> k = cache_of(c.dim), v = cache_of(c.v_dim);
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    sums.push_back(sums.back() + query_lens[seq]);
    for (int64_t token = 0; token < lengths[seq]; ++token) {
      int32_t& block = table[seq * columns + token / c.block_size];
      if (token % c.block_size == 0) block = next--;
      for (int64_t head = 0; head < c.kv_heads; ++head) {
        const int64_t row = (block * c.kv_heads + head) * c.block_size + token % c.block_size;
        for (int64_t d = 0; d < c.dim; ++d) store_element(c.cache_element, k.data() + (row * c.dim + d) * bytes, 0.0f);
        for (int64_t d = 0; d < c.v_dim; ++d) store_element(c.cache_element, v.data() + (row * c.v_dim + d) * bytes, kValue);
      }
    }
  }
  const int64_t q_heads = c.kv_heads * c.group, num_rows = sums.back() + 1;
  std::vector<char> q(num_rows * q_heads * c.dim * out_bytes), out(num_rows * q_heads * c.v_dim * out_bytes);
  std::vector<float> lse(num_rows * q_heads), per_head(q_heads, 0.25f), scale(c.kv_heads, 1.0f);

  AttendArguments a = {};
  a.q = q.data();
  a.q_row_stride = q_heads * c.dim * out_bytes;
  a.q_head_stride = c.dim * out_bytes;
  a.element = c.element;
  a.cache_element = c.cache_element;
  const float* scales = is_8bit(c.cache_element) ? scale.data() : nullptr;
  const auto view = [&](const std::vector<char>& cache, int64_t dim) {
    return CacheView{cache.data(), c.kv_heads * c.block_size * dim * bytes, c.block_size * dim * bytes, dim * bytes, dim, scales, 1};
  };
  a.k = view(k, c.dim);
  a.v = view(v, c.v_dim);
  a.block_table = table.data();
  a.table_stride = columns;
  a.seq_lens = lengths.data();
  a.cu_query_lens = sums.data();
  a.num_seqs = num_seqs;
  a.num_rows = num_rows;
  a.q_heads = q_heads;
  a.kv_heads = c.kv_heads;
  a.block_size = c.block_size;
  a.scale = 0.125f;
  a.causal = (c.option & 16) == 0;
  a.window = (c.option & 1) != 0 ? 5 : 0;
  a.softcap = (c.option & 2) != 0 ? 3.0f : 0.0f;
  a.sinks = (c.option & 4) != 0 ? per_head.data() : nullptr;
  a.alibi_slopes = (c.option & 8) != 0 ? per_head.data() : nullptr;
  a.batch_invariant = (c.option & 32) != 0;
  a.out = out.data();
  a.out_row_stride = q_heads * c.v_dim * out_bytes;
  a.out_head_stride = c.v_dim * out_bytes;
  a.lse = lse.data();
  a.lse_row_stride = q_heads;
  attend(a, kernels, {2, run_threads});

  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < q_heads * c.v_dim; ++i) {
      const float x = load_element(c.element, out.data() + (row * q_heads * c.v_dim + i) * out_bytes);
      const bool has_key = lse[row * q_heads + i / c.v_dim] != -INFINITY;
      const bool is_right = !has_key ? x == 0.0f : a.sinks != nullptr ? x > 0.0f && x < kValue : std::fabs(x - kValue) < 0.01f;
      if (!is_right) {
        std::printf("%s: row %d element %d is %g\n", kernels.name, static_cast<int>(row), static_cast<int>(i), x);
        return false;
      }
    }
  }
  return true;
}

bool run_all(const char* name, int* num_cases) {
  constexpr Element kFloats[] = {Element::kFloat32, Element::kFloat16, Element::kBFloat16};
  constexpr Element kBytes[] = {Element::kFloat8E4M3, Element::kFloat8E5M2, Element::kInt8};
  constexpr int64_t kDims[][2] = {{8, 8}, {64, 64}, {80, 24}, {120, 128}, {264, 72}};
  constexpr int64_t kGroups[] = {1, 3, 4, 7, 16};
  constexpr int64_t kBlockSizes[] = {8, 16, 24, 128};
  force_kernels(name);
  int index = 0;
  for (const Element element : kFloats) {
    for (int cache = 0; cache < 4; ++cache) {
      for (const auto& dims : kDims) {
        for (const int64_t group : kGroups) {
          const Element stored = cache == 0 ? element : kBytes[cache - 1];
          const Kernels* kernels = kernels_for(stored);
          if (kernels == nullptr) return true;
          if (++index % 3 != 0) continue;  // every third, with an option and a block size of its own
          const Case c = {element, stored, dims[0], dims[1], group, 1 + index % 2, kBlockSizes[index % 4], index * 7 % 64};
          if (!run(c, *kernels)) return false;
          ++*num_cases;
        }
      }
    }
  }
  return true;
}

bool run_moves() {
  std::vector<float> rows(6 * 2 * 8), k(4 * 2 * 4 * 8, 9.0f), gathered(6 * 2 * 8);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  const int64_t slots[6] = {15, 0, -1, 7, 7, 4};
  char* cache = reinterpret_cast<char*>(k.data());
  const CacheView view = {cache, 2 * 4 * 8 * 4, 4 * 8 * 4, 8 * 4, 8, nullptr, 0};
  const Transfer in = {{reinterpret_cast<char*>(rows.data()), 64, 32, Element::kFloat32}, view, cache, Element::kFloat32};
  write(&in, 1, slots, 6, 2, 4, {2, run_threads});
  const Transfer out = {{reinterpret_cast<char*>(gathered.data()), 64, 32, Element::kFloat32}, view, nullptr, Element::kFloat32};
  const int32_t table[2] = {1, 3}, sums[2] = {0, 4};
  gather(&out, 1, table, 2, sums, 1, 2, 4, {2, run_threads});
  const BlockShape shape = block_shape(3, (const int64_t[]){2, 4, 8}, (const int64_t[]){32, 8, 1}, (const int64_t[]){32, 8, 1}, 4);
  copy_block(shape, cache, cache + 2 * 2 * 4 * 8 * 4);
  return gathered[0] == rows[5 * 16] && gathered[3 * 16] == rows[4 * 16] && k[2 * 64] == rows[16];
}

}  // namespace
}  // namespace looseleaf

int main() {
  int num_cases = 0;
  bool is_right = looseleaf::run_moves();
  for (const char* name : {"portable", "avx2", "avx512", "avx512_bf16", "avx512_amx"})
    is_right = is_right && looseleaf::run_all(name, &num_cases);
  std::printf("%d cases\n", num_cases);
  return is_right && num_cases > 0 ? 0 : 1;
}
