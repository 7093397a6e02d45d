// Attention of the few query rows of one sequence to a range of its tokens: decode and speculative verify.
//
// Work: one call streams the blocks of [first_token, end_token) once, in steps of kStepTokens tokens. A step reads K of
// all KV heads, then V of all KV heads: with storage [blocks, 2, kv_heads, block_size, head_dim] that is memory order,
// which the prototype found worth 1.3 to 1.7 times over head by head. While it works, it
// prefetches into L2 what comes kAheadBytes later in that order, across K, V and the next step.
// Memory: a row is a query row of one KV head: row = (kv_head * query_len + token) * group + head in group. q is
// converted to fp32 once, in unit order. State: accumulator [rows, padded dim], reference and lane sums of the softmax.
// 8-bit caches are expanded to fp32 in L1, a few tokens of one head at a time, so that no loop knows of them.
// Slots at or past the sequence's length are never loaded: addresses repeat the last good one instead.
// Checked by tests/kernels/test_grid.py.
#pragma once

#include "looseleaf/kernels.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

constexpr int64_t kAheadBytes = 16384;
constexpr int64_t kUnpackedTokens = 16;  // of an 8-bit cache, as fp32 in L1


// Addresses of the tokens of a step, for head 0. Padded with copies of the last, for tiles that reach past the end.
struct Step {
  int64_t first = 0, count = 0;
  const char* k[kStepTokens + 8];
  const char* v[kStepTokens + 8];
};

inline void locate(const AttendArguments& a, int64_t seq, int64_t first, int64_t end, Step* step) {
  step->first = first;
  step->count = end - first < kStepTokens ? end - first : kStepTokens;
  if (step->count <= 0) return;
  const int32_t* cells = a.block_table + seq * a.table_stride;
  int64_t column = first / a.block_size, offset = first - column * a.block_size;
  int64_t t = 0;
  while (t < step->count) {
    const int64_t block = cells[column++];
    const char* k = a.k.data + block * a.k.block_stride + offset * a.k.token_stride;
    const char* v = a.v.data + block * a.v.block_stride + offset * a.v.token_stride;
    for (; offset < a.block_size && t < step->count; ++offset, ++t) {
      step->k[t] = k;
      step->v[t] = v;
      k += a.k.token_stride;
      v += a.v.token_stride;
    }
    offset = 0;
  }
  for (int64_t i = step->count; i < step->count + 8; ++i) {
    step->k[i] = step->k[step->count - 1];
    step->v[i] = step->v[step->count - 1];
  }
}

// fp32 rows of q in unit order of T, padded with 0.
template <class T>
void load_queries(const AttendArguments& a, int64_t row, int64_t num_tokens, int64_t kv_head, float* out, int64_t stride) {
  const int64_t group = a.group(), dim = a.k.dim;
  for (int64_t i = 0; i < num_tokens; ++i) {
    for (int64_t g = 0; g < group; ++g, out += stride) {
      const char* from = a.q + (row + i) * a.q_row_stride + (kv_head * group + g) * a.q_head_stride;
      if (dim != stride) std::memset(out, 0, static_cast<size_t>(stride) * sizeof(float));
#ifdef LOOSELEAF_BY_PAIRS
      if constexpr (std::is_same_v<T, BFloat>) {
        load_query_pairs(from, dim, out, stride);
        continue;
      }
#endif
      if constexpr (std::is_same_v<T, float>) {
        read_floats(a.element, from, dim, out);
      } else {
        read_units<T>(from, dim, out);
      }
    }
  }
}

template <class T>
void store_row(const AttendArguments& a, int64_t row, int64_t q_head, float* sums, const Normalized& normalized,
               float v_scale) {
  char* to = a.out + row * a.out_row_stride + q_head * a.out_head_stride;
  if (normalized.divisor == 0.0f) {
    std::memset(to, 0, static_cast<size_t>(a.v.dim * bytes_of(a.element)));
  } else {
    divide_row(sums, padded_dim(a.v.dim), normalized.divisor, normalized.factor * v_scale);
    if constexpr (std::is_same_v<T, float>) {
      write_floats(a.element, sums, a.v.dim, to);
    } else {
      write_units<T>(sums, a.v.dim, to);
    }
  }
  if (a.lse != nullptr) a.lse[row * a.lse_row_stride + q_head] = normalized.lse;
}

template <class T>
void finish(const AttendArguments& a, int64_t seq, const State& state) {
  const int64_t group = a.group(), num_tokens = a.query_len(seq);
  const int64_t stride = padded_dim(a.v.dim);
  int64_t index = 0;
  for (int64_t h = 0; h < a.kv_heads; ++h) {
    for (int64_t i = 0; i < num_tokens; ++i) {
      for (int64_t g = 0; g < group; ++g, ++index) {
        const int64_t head = h * group + g;
        const Normalized n = normalize(state.largest[index], sum(load(state.sums + index * kStateLanes)),
                                       a.sinks == nullptr ? nullptr : a.sinks + head);
        store_row<T>(a, a.first_row(seq) + i, head, state.rows + index * stride, n, a.v.scale_of(h));
      }
    }
  }
}

// The products for this element: bf16 in pairs where the set says so (pairs.h), fp32 otherwise.
template <class T, class... Arguments>
inline void score_rows(Arguments... arguments) {
#ifdef LOOSELEAF_BY_PAIRS
  if constexpr (std::is_same_v<T, BFloat>) return dots_by_pairs(arguments...);
#endif
  return dots<T>(arguments...);
}

template <class T, class... Arguments>
inline void add_values(Arguments... arguments) {
#ifdef LOOSELEAF_BY_PAIRS
  if constexpr (std::is_same_v<T, BFloat>) return accumulate_by_pairs(arguments...);
#endif
  return accumulate<T>(arguments...);
}

template <class T>
void decode(const AttendArguments& a, const Part& part, const State& state, char* scratch, Unpack unpack) {
  const int64_t seq = part.seq, num_tokens = a.query_len(seq), rows_of_head = num_tokens * a.group();
  const int64_t num_rows = rows_of_head * a.kv_heads;
  const int64_t k_stride = padded_dim(a.k.dim), v_stride = padded_dim(a.v.dim);
  constexpr int64_t kScores = kStepTokens + 16;
  float* q = reinterpret_cast<float*>(scratch);
  float* scores = q + num_rows * k_stride;
  float* tile = scores + num_rows * kScores;
  const char* tile_rows[kUnpackedTokens + 8];
  const int64_t tile_stride = k_stride > v_stride ? k_stride : v_stride;
  for (int64_t t = 0; t < kUnpackedTokens + 8; ++t)
    tile_rows[t] = reinterpret_cast<const char*>(tile + (t < kUnpackedTokens ? t : kUnpackedTokens - 1) * tile_stride);
  // Gives `use` the rows of a step as elements of T: as they lie, or some at a time, expanded.
  const auto with_rows = [&](const char* const* rows, int64_t count, int64_t offset, int64_t dim, Ahead ahead,
                             const auto& use) __attribute__((always_inline)) {
    if (unpack == nullptr) return use(rows, offset, int64_t{0}, count, ahead);
    for (int64_t t = 0; t < count; t += kUnpackedTokens) {
      const int64_t some = count - t < kUnpackedTokens ? count - t : kUnpackedTokens;
      unpack(rows + t, offset, dim, some, tile, tile_stride, ahead.rows == nullptr ? nullptr : ahead.rows + t, ahead.offset);
      use(tile_rows, int64_t{0}, t, some, Ahead{nullptr, 0});
    }
  };

  for (int64_t h = 0; h < a.kv_heads; ++h)
    load_queries<T>(a, a.first_row(seq), num_tokens, h, q + h * rows_of_head * k_stride, k_stride);
  for (int64_t i = 0; i < num_rows; ++i) {
    state.largest[i] = kLowest;
    store(state.sums + i * kStateLanes, broadcast(0.0f));
  }
  std::memset(state.rows, 0, static_cast<size_t>(num_rows * v_stride) * sizeof(float));

  const int64_t num_items = 2 * a.kv_heads;
  const int64_t item_bytes = kStepTokens * a.k.dim * bytes_of(a.cache_element);
  int64_t distance = (kAheadBytes + item_bytes / 2) / item_bytes;
  distance = distance < 1 ? 1 : distance > num_items ? num_items : distance;
  Step steps[2];
  Step *now = steps, *next = steps + 1;
  locate(a, seq, part.first_token, part.end_token, now);
  while (now->count > 0) {
    locate(a, seq, now->first + now->count, part.end_token, next);
    const auto ahead_of = [&](int64_t item) {
      item += distance;
      const Step* step = item < num_items ? now : next;
      item = item < num_items ? item : item - num_items;
      // A last, shorter step has fewer addresses than this one would fetch: nothing to win there.
      if (step != now && step->count < now->count) return Ahead{nullptr, 0};
      return item < a.kv_heads ? Ahead{step->k, item * a.k.head_stride}
                               : Ahead{step->v, (item - a.kv_heads) * a.v.head_stride};
    };
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      with_rows(now->k, now->count, h * a.k.head_stride, a.k.dim, ahead_of(h),
                [&](const char* const* rows, int64_t offset, int64_t first, int64_t count, Ahead ahead) {
                  score_rows<T>(q + h * rows_of_head * k_stride, k_stride, rows_of_head, rows, offset, a.k.dim, count,
                                scores + h * rows_of_head * kScores + first, kScores, ahead);
                });
    }
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      const RowOptions options = row_options(a, h * a.group(), h);
      for (int64_t i = 0, index = h * rows_of_head; i < num_tokens; ++i) {
        const int64_t position = a.position(seq, i);
        const int64_t begin = a.first_key(position) - now->first;
        int64_t end = a.end_key(seq, position) - now->first;
        end = end < now->count ? end : now->count;
        for (int64_t g = 0; g < a.group(); ++g, ++index) {
          float* row = state.rows + index * v_stride;
          weigh_row(scores + index * kScores, now->count, begin, end, static_cast<float>(position - now->first),
                    a.alibi_slopes == nullptr ? options : row_options(a, h * a.group() + g, h), state.largest + index, state.sums + index * kStateLanes,
                    row, v_stride);
        }
      }
      with_rows(now->v, now->count, h * a.v.head_stride, a.v.dim, ahead_of(a.kv_heads + h),
                [&](const char* const* rows, int64_t offset, int64_t first, int64_t count, Ahead ahead) {
                  add_values<T>(state.rows + h * rows_of_head * v_stride, v_stride, rows_of_head,
                                scores + h * rows_of_head * kScores + first, kScores, rows, offset, a.v.dim, count, ahead);
                });
    }
    Step* const last = now;
    now = next;
    next = last;
  }
  if (part.is_whole) finish<T>(a, seq, state);
}

// The states of a sequence's parts, in order, into the first; then the result.
template <class T>
void combine(const AttendArguments& a, int64_t seq, const State* parts, int64_t num_parts) {
  const int64_t num_rows = a.query_len(seq) * a.q_heads, stride = padded_dim(a.v.dim);
  const State& whole = parts[0];
  for (int64_t p = 1; p < num_parts; ++p) {
    const State& part = parts[p];
    for (int64_t i = 0; i < num_rows; ++i) {
      const float old = whole.largest[i], other = part.largest[i];
      const float reference = old > other ? old : other;
      const float keep = ::exp2f(old - reference), add = ::exp2f(other - reference);
      whole.largest[i] = reference;
      float* sums = whole.sums + i * kStateLanes;
      store(sums, load(sums) * broadcast(keep) + load(part.sums + i * kStateLanes) * broadcast(add));
      float* to = whole.rows + i * stride;
      const float* from = part.rows + i * stride;
      for (int64_t d = 0; d < stride; d += kLanes) store(to + d, load(to + d) * broadcast(keep) + load(from + d) * broadcast(add));
    }
  }
  finish<T>(a, seq, whole);
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
