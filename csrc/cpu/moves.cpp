// See moves.h. Where a slot stands twice in a write, each of its rows is written by one thread in the tokens' order, for
// K and for V alike, so the last one wins whole. Checked by tests/kernels/test_moves.py.
#include "moves.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace looseleaf {
namespace {

constexpr int64_t kBytesOfOneTask = 1 << 18;

int64_t tasks_for(int64_t num_bytes, int64_t most, const Threads& threads) {
  return std::max<int64_t>(1, std::min({num_bytes / kBytesOfOneTask, most, threads.count}));
}

void encode_row(const Transfer& transfer, const char* from, char* to, float scale) {
  const int64_t bytes = bytes_of(transfer.rows.element);
  for (int64_t d = 0; d < transfer.cache.dim; ++d)
    to[d] = static_cast<char>(encode_8bit(transfer.element, load_element(transfer.rows.element, from + d * bytes) / scale));
}

void decode_row(const Transfer& transfer, const char* from, char* to, float scale) {
  const int64_t bytes = bytes_of(transfer.rows.element);
  for (int64_t d = 0; d < transfer.cache.dim; ++d)
    store_element(transfer.rows.element, to + d * bytes, load_element(transfer.element, from + d) * scale);
}

}  // namespace

void write(const Transfer* transfers, int64_t num_transfers, const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
           int64_t block_size, const Threads& threads) {
  const int64_t num_items = num_transfers * kv_heads;
  const int64_t item_bytes = num_tokens * transfers[0].cache.dim * bytes_of(transfers[0].rows.element);
  const int64_t num_tasks = tasks_for(num_items * item_bytes, num_items, threads);
  threads(num_tasks, [&](int64_t task) {
    const int64_t first = num_items * task / num_tasks, end = num_items * (task + 1) / num_tasks;
    for (int64_t token = 0; token < num_tokens; ++token) {
      const int64_t slot = slots[token];
      if (slot < 0) continue;
      const int64_t block = slot / block_size, offset = slot - block * block_size;
      for (int64_t item = first; item < end; ++item) {
        const Transfer& transfer = transfers[item / kv_heads];
        const int64_t head = item % kv_heads;
        const char* from = transfer.rows.data + token * transfer.rows.row_stride + head * transfer.rows.head_stride;
        char* to = transfer.cache_data + block * transfer.cache.block_stride + head * transfer.cache.head_stride +
                   offset * transfer.cache.token_stride;
        if (is_8bit(transfer.element)) {
          encode_row(transfer, from, to, transfer.cache.scale_of(head));
        } else {
          std::memcpy(to, from, static_cast<size_t>(transfer.cache.dim * bytes_of(transfer.element)));
        }
      }
    }
  });
}

void gather(const Transfer* transfers, int64_t num_transfers, const int32_t* block_table, int64_t table_stride,
            const int32_t* cu_seq_lens, int64_t num_seqs, int64_t kv_heads, int64_t block_size, const Threads& threads) {
  const int64_t num_tokens = num_seqs == 0 ? 0 : cu_seq_lens[num_seqs];
  const int64_t token_bytes = num_transfers * kv_heads * transfers[0].cache.dim * bytes_of(transfers[0].rows.element);
  const int64_t num_tasks = tasks_for(num_tokens * token_bytes, num_tokens, threads);
  threads(num_tasks, [&](int64_t task) {
    int64_t row = num_tokens * task / num_tasks;
    const int64_t end = num_tokens * (task + 1) / num_tasks;
    int64_t seq = std::upper_bound(cu_seq_lens, cu_seq_lens + num_seqs + 1, row) - cu_seq_lens - 1;
    for (; row < end; ++row) {
      while (row >= cu_seq_lens[seq + 1]) ++seq;
      const int64_t token = row - cu_seq_lens[seq];
      const int64_t block = block_table[seq * table_stride + token / block_size], offset = token % block_size;
      for (int64_t item = 0; item < num_transfers * kv_heads; ++item) {
        const Transfer& transfer = transfers[item / kv_heads];
        const int64_t head = item % kv_heads;
        char* to = transfer.rows.data + row * transfer.rows.row_stride + head * transfer.rows.head_stride;
        const char* from = transfer.cache.data + block * transfer.cache.block_stride + head * transfer.cache.head_stride +
                           offset * transfer.cache.token_stride;
        if (is_8bit(transfer.element)) {
          decode_row(transfer, from, to, transfer.cache.scale_of(head));
        } else {
          std::memcpy(to, from, static_cast<size_t>(transfer.cache.dim * bytes_of(transfer.element)));
        }
      }
    }
  });
}

void copy_block(const BlockShape& shape, const char* source, char* target) {
  int64_t at[BlockShape::kMaxDims] = {};
  for (int i = 0; i < shape.num_dims; ++i)
    if (shape.sizes[i] == 0) return;
  for (;;) {
    std::memcpy(target, source, static_cast<size_t>(shape.run_bytes));
    int d = shape.num_dims - 1;
    for (; d >= 0; --d) {
      source += shape.source_strides[d];
      target += shape.target_strides[d];
      if (++at[d] < shape.sizes[d]) break;
      source -= shape.source_strides[d] * shape.sizes[d];
      target -= shape.target_strides[d] * shape.sizes[d];
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

void merge_states(const MergeArguments& m, const Threads& threads) {
  const int64_t bytes = bytes_of(m.element);
  const int64_t num_tasks = tasks_for(m.num_rows * m.q_heads * m.dim * bytes * 3, m.num_rows, threads);
  threads(num_tasks, [&](int64_t task) {
    for (int64_t row = m.num_rows * task / num_tasks; row < m.num_rows * (task + 1) / num_tasks; ++row) {
      for (int64_t head = 0; head < m.q_heads; ++head) {
        const float a = m.lse_a[row * m.lse_a_stride + head], b = m.lse_b[row * m.lse_b_stride + head];
        const float largest = a > b ? a : b;
        const float reference = largest == -INFINITY ? 0.0f : largest;
        const float weight_a = std::exp(a - reference), weight_b = std::exp(b - reference), total = weight_a + weight_b;
        const float share_a = total > 0.0f ? weight_a / total : 0.0f, share_b = total > 0.0f ? weight_b / total : 0.0f;
        m.lse[row * m.q_heads + head] = reference + std::log(total);
        const char* from_a = m.out_a + row * m.a_strides[0] + head * m.a_strides[1];
        const char* from_b = m.out_b + row * m.b_strides[0] + head * m.b_strides[1];
        char* to = m.out + row * m.out_strides[0] + head * m.out_strides[1];
        for (int64_t d = 0; d < m.dim; ++d) {  // a part without a share may hold anything
          const float part_a = share_a > 0.0f ? share_a * load_element(m.element, from_a + d * bytes) : 0.0f;
          const float part_b = share_b > 0.0f ? share_b * load_element(m.element, from_b + d * bytes) : 0.0f;
          store_element(m.element, to + d * bytes, part_a + part_b);
        }
      }
    }
  });
}

}  // namespace looseleaf
