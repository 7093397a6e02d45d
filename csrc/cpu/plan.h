// Who does what in one call of `attend`: decode by ranges of blocks, prefill by tiles.
//
// All blocks of all decoding sequences stand in one line, and each thread takes an equal stretch of it, so that ragged
// batches balance to one block. A sequence that a boundary cuts has several parts; whichever thread finishes the last of
// them combines all. `batch_invariant`: cuts stand at multiples of kInvariantTokens of the sequence itself instead, and
// parts are combined in order, so neither the batch nor the number of threads can be seen in a result.
#pragma once

#include <vector>

#include "looseleaf/kernels.h"

namespace looseleaf {

constexpr int64_t kDecodeRows = 16;  // of one KV head: up to here each row streams K and V, above they are packed
constexpr int64_t kInvariantTokens = 1024;
constexpr int64_t kBytesOfOneThread = 1 << 17;  // less than this for each thread is not worth waking it

struct Plan {
  std::vector<Part> parts;
  std::vector<int64_t> first_part;   // of each thread, and the end
  std::vector<int64_t> split;        // of each part: index into `splits`, -1 for a whole sequence
  struct Split {
    int64_t seq, first_part, num_parts, first_state;  // states count floats
  };
  std::vector<Split> splits;
  std::vector<Tile> tiles;
  int64_t num_threads = 1;
  int64_t state_floats = 0;
  int64_t scratch_bytes = 0;  // of each thread

  void make(const AttendArguments& a, int64_t max_threads);

 private:
  struct Stretch {
    int64_t seq, first_token, end_token, num_blocks;
  };
  std::vector<Stretch> stretches_;
  void collect(const AttendArguments& a, int64_t* bytes);
  void cut_evenly(const AttendArguments& a);
  void cut_by_position(const AttendArguments& a);
  void add_parts(const AttendArguments& a, int64_t first_of_sequence);
};

}  // namespace looseleaf
