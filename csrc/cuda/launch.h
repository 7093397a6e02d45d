// What csrc/cuda offers to whoever has checked the arguments: launches on a stream, nothing that waits for the device.
// Each function returns what went wrong, or null.
#pragma once

#include <vector>

#include "looseleaf/moves_arguments.h"

namespace looseleaf::cuda {

const char* write(const Transfer (&transfers)[2], const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
                  int64_t block_size, void* stream);
const char* gather(const Transfer (&transfers)[2], const int32_t* block_table, int64_t table_stride,
                   const int32_t* cu_seq_lens, int64_t num_seqs, int64_t num_rows, int64_t kv_heads, int64_t block_size,
                   void* stream);
const char* copy_blocks(const std::vector<BlockTensors>& tensors, const int32_t* cells, int64_t cell_stride,
                        int64_t num_pairs, void* stream);
// Between any two devices, or a device and the host.
const char* swap_blocks(const std::vector<BlockTensors>& tensors, const std::vector<BlockPair>& pairs, void* stream);
const char* merge_states(const MergeArguments& arguments, void* stream);

}  // namespace looseleaf::cuda
