// Moving tokens and blocks: write, gather, copy, swap, merge. One plain file for every processor: memory decides.
#pragma once

#include "looseleaf/moves_arguments.h"
#include "threads.h"

namespace looseleaf {

void write(const Transfer* transfers, int64_t num_transfers, const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
           int64_t block_size, const Threads& threads);

void gather(const Transfer* transfers, int64_t num_transfers, const int32_t* block_table, int64_t table_stride,
            const int32_t* cu_seq_lens, int64_t num_seqs, int64_t kv_heads, int64_t block_size, const Threads& threads);

void copy_block(const BlockShape& shape, const char* source, char* target);

void merge_states(const MergeArguments& arguments, const Threads& threads);

}  // namespace looseleaf
