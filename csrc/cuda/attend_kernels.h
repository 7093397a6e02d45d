// Launches of the attention kernels, one file of csrc/cuda for each group of instances. Each returns an error, or null.
#pragma once

#include "looseleaf/attend_plan.h"

namespace looseleaf::cuda {

// Shared memory that a block may take on every card since sm_80 (the least is 99 KB on sm_86).
constexpr int64_t kMostSharedBytes = 99 * 1024;

// Query rows of a tile on tensor cores, or 0 where this call does not fit them.
int64_t mma_tile_rows(const AttendArguments& arguments, int64_t max_query_len);
const char* launch_mma(const AttendArguments& arguments, const Plan& plan, void* stream);

// Takes every call whose head dims fit into a block's shared memory.
constexpr int64_t kSimtTileRows = 8;
const char* launch_simt(const AttendArguments& arguments, const Plan& plan, void* stream);

}  // namespace looseleaf::cuda
