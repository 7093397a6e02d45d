// What the operators ask of the device that their tensors are on. The checks of arguments are the same for all devices;
// csrc/cpu/backend.cpp and csrc/cuda/backend.cpp do what was asked for.
//
// A file that includes the operators' files defines LOOSELEAF_IMPLEMENT(library), the beginning of a registration.
#pragma once

#include <memory>
#include <vector>

#include "looseleaf/moves_arguments.h"
#include "tensor_view.h"

namespace looseleaf::backend {

// One call of an operator on the device of `tensor`, current for as long as this lives.
class Call {
 public:
  explicit Call(const Tensor& tensor);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Memory of the device until the call ends, as the device sees it.
  char* allocate(int64_t num_bytes);
  // Values that checks look at: the memory itself where the host reads it, a copy in order to be checked, or null where
  // that would wait for the device and nobody asked for it.
  const void* readable(const void* data, int64_t num_bytes);
  void* stream() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

void attend(Call& call, const AttendArguments& arguments, int64_t max_query_len);
void write(Call& call, const Transfer (&transfers)[2], const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
           int64_t block_size);
void gather(Call& call, const Transfer (&transfers)[2], const int32_t* block_table, int64_t table_stride,
            const int32_t* cu_seq_lens, int64_t num_seqs, int64_t num_rows, int64_t kv_heads, int64_t block_size);
// `cells`: pairs on the device, `cell_stride` from one to the next; those of -1 are skipped.
void copy_blocks(Call& call, const std::vector<BlockTensors>& tensors, const int32_t* cells, int64_t cell_stride,
                 int64_t num_pairs);
void swap_blocks(Call& call, const std::vector<BlockTensors>& tensors, const std::vector<BlockPair>& pairs);
void merge_states(Call& call, const MergeArguments& arguments);

}  // namespace looseleaf::backend
