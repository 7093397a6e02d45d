// The driver of `attend` on a GPU: which kernel, how much memory, and the three launches of a call.
#pragma once

#include "looseleaf/attend_arguments.h"

namespace looseleaf::cuda {

struct AttendLaunch {
  bool is_mma;  // on tensor cores
  int64_t tile_rows, num_blocks;
  int64_t tables_bytes, states_bytes;  // of the workspace: sums of the plan, states of parts
  int64_t workspace_bytes() const { return tables_bytes + states_bytes; }
};

// `max_query_len` bounds each sequence's rows; `num_processors` is the number of multiprocessors of the card.
AttendLaunch attend_launch(const AttendArguments& arguments, int64_t max_query_len, int64_t num_processors);

// Workspace: 16-byte aligned, no content needed. Returns what went wrong, or null.
const char* attend(const AttendArguments& arguments, const AttendLaunch& chosen, char* workspace, void* stream);

}  // namespace looseleaf::cuda
