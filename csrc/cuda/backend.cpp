// The operators' work on CUDA tensors: the device of the call, torch's current stream, memory from torch's allocator.
// The emulator's library is compiled from the same file without LOOSELEAF_ON_CUDA: its tensors are on the CPU.
#include "backend.h"

#include <cstdlib>
#include <cstring>

#include "cuda/attend.h"
#include "cuda/launch.h"

#if defined(LOOSELEAF_ON_CUDA)
#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#else
#include "emu/emulator.h"
#endif

namespace looseleaf::backend {
namespace {

void check(const char* error) { LOOSELEAF_CHECK(error == nullptr, "CUDA refused a launch: ", error); }

#if defined(LOOSELEAF_ON_CUDA)
void check(cudaError_t error) { check(error == cudaSuccess ? nullptr : cudaGetErrorString(error)); }

// LOOSELEAF_CHECK=1: look at ids and lengths too, which waits for the device in every call.
bool checks_contents() {
  static const char* const text = std::getenv("LOOSELEAF_CHECK");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

int64_t num_processors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}
#else
int64_t num_processors() { return emu::settings().processors; }
#endif

// For the emulator: results, which may not be among the arguments of an operator, and memory of its own.
void allow(const void* memory, int64_t num_bytes) {
#if defined(LOOSELEAF_ON_CUDA)
  static_cast<void>(memory);
  static_cast<void>(num_bytes);
#else
  if (emu::elsewhere().allow != nullptr) emu::elsewhere().allow(memory, num_bytes);
#endif
}

}  // namespace

struct Call::State {
#if defined(LOOSELEAF_ON_CUDA)
  explicit State(const Tensor& tensor) : like(tensor), guard(tensor.get_device_index()) {
    LOOSELEAF_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream) == 0,
                    "torch has no current stream for this device");
  }
  Tensor like;
  torch::stable::accelerator::DeviceGuard guard;
#else
  explicit State(const Tensor& tensor) : like(tensor) {}
  Tensor like;
#endif
  void* stream = nullptr;
  std::vector<Tensor> memory;
  std::vector<std::vector<char>> copies;
};

Call::Call(const Tensor& tensor) : state_(std::make_unique<State>(tensor)) {}
Call::~Call() = default;

char* Call::allocate(int64_t num_bytes) {
  state_->memory.push_back(torch::stable::new_empty(state_->like, {num_bytes}, ScalarType::Byte));
  char* memory = static_cast<char*>(state_->memory.back().mutable_data_ptr());
  allow(memory, num_bytes);
  return memory;
}

void* Call::stream() const { return state_->stream; }

const void* Call::readable(const void* data, int64_t num_bytes) {
#if defined(LOOSELEAF_ON_CUDA)
  if (!checks_contents() || data == nullptr) return nullptr;
  state_->copies.emplace_back(static_cast<size_t>(num_bytes) + 1);
  char* copy = state_->copies.back().data();
  const auto stream = static_cast<cudaStream_t>(state_->stream);
  check(cudaMemcpyAsync(copy, data, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  return copy;
#else
  static_cast<void>(num_bytes);
  return data;
#endif
}

void attend(Call& call, const AttendArguments& arguments, int64_t max_query_len) {
  if (arguments.num_rows == 0) return;
  const int64_t last_row = arguments.num_rows - 1, last_head = arguments.q_heads - 1;
  allow(arguments.out, last_row * arguments.out_row_stride + last_head * arguments.out_head_stride +
                           arguments.v.dim * bytes_of(arguments.element));
  if (arguments.lse != nullptr) allow(arguments.lse, 4 * (last_row * arguments.lse_row_stride + arguments.q_heads));
  const cuda::AttendLaunch chosen = cuda::attend_launch(arguments, max_query_len, num_processors());
  check(cuda::attend(arguments, chosen, call.allocate(chosen.workspace_bytes()), call.stream()));
}

void write(Call& call, const Transfer (&transfers)[2], const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
           int64_t block_size) {
  check(cuda::write(transfers, slots, num_tokens, kv_heads, block_size, call.stream()));
}

void gather(Call& call, const Transfer (&transfers)[2], const int32_t* block_table, int64_t table_stride,
            const int32_t* cu_seq_lens, int64_t num_seqs, int64_t num_rows, int64_t kv_heads, int64_t block_size) {
  check(cuda::gather(transfers, block_table, table_stride, cu_seq_lens, num_seqs, num_rows, kv_heads, block_size,
                     call.stream()));
}

void copy_blocks(Call& call, const std::vector<BlockTensors>& tensors, const int32_t* cells, int64_t cell_stride,
                 int64_t num_pairs) {
  check(cuda::copy_blocks(tensors, cells, cell_stride, num_pairs, call.stream()));
}

void swap_blocks(Call& call, const std::vector<BlockTensors>& tensors, const std::vector<BlockPair>& pairs) {
  check(cuda::swap_blocks(tensors, pairs, call.stream()));
}

void merge_states(Call& call, const MergeArguments& arguments) {
  const int64_t num_items = arguments.num_rows * arguments.q_heads;
  allow(arguments.out, num_items * arguments.dim * bytes_of(arguments.element));
  allow(arguments.lse, num_items * 4);
  check(cuda::merge_states(arguments, call.stream()));
}

}  // namespace looseleaf::backend
