// The operators' work on CPU tensors, on torch's threads.
#include "backend.h"

#include "cpu/attend.h"
#include "cpu/moves.h"
#include "library.h"

namespace looseleaf::backend {

struct Call::State {};

Call::Call(const Tensor&) {}
Call::~Call() = default;
const void* Call::readable(const void* data, int64_t) { return data; }

void attend(Call&, const AttendArguments& arguments, int64_t) {
  const Kernels* kernels = kernels_for(arguments.cache_element);
  LOOSELEAF_CHECK(kernels != nullptr, "LOOSELEAF_ISA names kernels that this processor or library does not have: ",
                  forced_kernels());
  looseleaf::attend(arguments, *kernels, torch_threads());
}

void write(Call&, const Transfer (&transfers)[2], const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
           int64_t block_size) {
  looseleaf::write(transfers, 2, slots, num_tokens, kv_heads, block_size, torch_threads());
}

void gather(Call&, const Transfer (&transfers)[2], const int32_t* block_table, int64_t table_stride,
            const int32_t* cu_seq_lens, int64_t num_seqs, int64_t, int64_t kv_heads, int64_t block_size) {
  looseleaf::gather(transfers, 2, block_table, table_stride, cu_seq_lens, num_seqs, kv_heads, block_size, torch_threads());
}

void copy_blocks(Call& call, const std::vector<BlockTensors>& tensors, const int32_t* cells, int64_t cell_stride,
                 int64_t num_pairs) {
  std::vector<BlockPair> pairs;
  for (int64_t i = 0; i < num_pairs; ++i)
    if (cells[i * cell_stride] >= 0) pairs.push_back({cells[i * cell_stride], cells[i * cell_stride + 1]});
  swap_blocks(call, tensors, pairs);
}

void swap_blocks(Call&, const std::vector<BlockTensors>& tensors, const std::vector<BlockPair>& pairs) {
  torch_threads()(static_cast<int64_t>(tensors.size()), [&](int64_t i) {
    const BlockTensors& each = tensors[static_cast<size_t>(i)];
    for (const BlockPair& pair : pairs)
      copy_block(each.shape, each.source + pair.source * each.source_stride, each.target + pair.target * each.target_stride);
  });
}

void merge_states(Call&, const MergeArguments& arguments) { looseleaf::merge_states(arguments, torch_threads()); }

}  // namespace looseleaf::backend
