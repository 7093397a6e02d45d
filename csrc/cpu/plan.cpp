// See plan.h. Nothing here allocates once the vectors have grown to a caller's batches.
#include "plan.h"

#include <algorithm>

namespace looseleaf {

void Plan::collect(const AttendArguments& a, int64_t* bytes) {
  const int64_t token_bytes = a.kv_heads * (a.k.dim + a.v.dim) * bytes_of(a.cache_element);
  for (int64_t seq = 0; seq < a.num_seqs; ++seq) {
    const int64_t query_len = a.query_len(seq), group = a.group();
    if (query_len == 0) continue;
    const int64_t first = a.first_key(a.position(seq, 0));
    const int64_t end = std::max(first, a.end_key(seq, a.position(seq, query_len - 1)));
    if (query_len == 1 || query_len * group <= kDecodeRows) {
      const int64_t num_blocks = (end + a.block_size - 1) / a.block_size - first / a.block_size;
      stretches_.push_back({seq, first, end, std::max<int64_t>(num_blocks, 1)});
      *bytes += (end - first) * token_bytes;
      scratch_bytes = std::max(scratch_bytes, decode_scratch_bytes(a, query_len * a.q_heads));
      continue;
    }
    const int64_t tokens = std::max<int64_t>(1, kTileRows / group);
    for (int64_t head = 0; head < a.kv_heads; ++head)
      for (int64_t at = (query_len - 1) / tokens * tokens; at >= 0; at -= tokens)  // the longest first
        tiles.push_back({seq, head, at, std::min(tokens, query_len - at)});
    *bytes += (end - first) * token_bytes * (query_len * group / kDecodeRows);
    scratch_bytes = std::max(scratch_bytes, prefill_scratch_bytes(a, tokens * group));
  }
}

// Ends a sequence's run of parts: alone it writes the result itself, together they get states.
void Plan::add_parts(const AttendArguments& a, int64_t first_of_sequence) {
  const int64_t count = static_cast<int64_t>(parts.size()) - first_of_sequence;
  if (count == 1) {
    parts.back().is_whole = true;
    split.push_back(-1);
    return;
  }
  const int64_t seq = parts.back().seq;
  for (int64_t i = 0; i < count; ++i) split.push_back(static_cast<int64_t>(splits.size()));
  splits.push_back({seq, first_of_sequence, count, state_floats});
  state_floats += count * looseleaf::state_floats(a, a.query_len(seq) * a.q_heads);
}

void Plan::cut_evenly(const AttendArguments& a) {
  int64_t total = 0;
  for (const Stretch& s : stretches_) total += s.num_blocks;
  int64_t thread = 0, at = 0;  // blocks before this one in the line
  for (const Stretch& s : stretches_) {
    const int64_t first_of_sequence = static_cast<int64_t>(parts.size());
    int64_t token = s.first_token, done = 0;
    while (done < s.num_blocks) {
      while (at >= total * (thread + 1) / num_threads) {
        first_part.push_back(static_cast<int64_t>(parts.size()));
        ++thread;
      }
      const int64_t take = std::min(s.num_blocks - done, total * (thread + 1) / num_threads - at);
      done += take;
      at += take;
      const int64_t end =
          done == s.num_blocks ? s.end_token : (s.first_token / a.block_size + done) * a.block_size;
      parts.push_back({s.seq, token, end, false});
      token = end;
    }
    add_parts(a, first_of_sequence);
  }
}

void Plan::cut_by_position(const AttendArguments& a) {
  int64_t total = 0, at = 0, thread = 0;
  for (const Stretch& s : stretches_) total += s.num_blocks;
  const int64_t step = std::max<int64_t>(1, kInvariantTokens / a.block_size) * a.block_size;
  for (const Stretch& s : stretches_) {
    const int64_t first_of_sequence = static_cast<int64_t>(parts.size());
    int64_t token = s.first_token;
    do {
      const int64_t end = std::min(s.end_token, (token / step + 1) * step);
      while (thread + 1 < num_threads && at >= total * (thread + 1) / num_threads) {
        first_part.push_back(static_cast<int64_t>(parts.size()));
        ++thread;
      }
      parts.push_back({s.seq, token, end, false});
      at += std::max<int64_t>(1, (end - token + a.block_size - 1) / a.block_size);
      token = end;
    } while (token < s.end_token);
    add_parts(a, first_of_sequence);
  }
}

void Plan::make(const AttendArguments& a, int64_t max_threads) {
  parts.clear();
  first_part.assign(1, 0);
  split.clear();
  splits.clear();
  tiles.clear();
  stretches_.clear();
  state_floats = scratch_bytes = 0;
  int64_t bytes = 0;
  collect(a, &bytes);
  num_threads = std::max<int64_t>(1, std::min(max_threads, bytes / kBytesOfOneThread));
  if (a.batch_invariant) {
    cut_by_position(a);
  } else {
    cut_evenly(a);
  }
  while (static_cast<int64_t>(first_part.size()) <= num_threads) first_part.push_back(static_cast<int64_t>(parts.size()));
}

}  // namespace looseleaf
