// Launches of the kernels that move tokens and blocks.
#include <cstring>

#include "launch.h"
#include "looseleaf/move_kernels.h"

namespace looseleaf::cuda {
namespace {

bool is_same(const BlockTensors& a, const BlockTensors& b) {
  return a.source_stride == b.source_stride && a.target_stride == b.target_stride &&
         std::memcmp(&a.shape, &b.shape, sizeof a.shape) == 0;
}

const char* copy_memory(char* target, const char* source, int64_t bytes, void* stream) {
#if defined(__CUDACC__)
  const cudaError_t error = cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDefault,
                                            static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
#else
  static_cast<void>(stream);
  std::memcpy(target, source, static_cast<size_t>(bytes));
  return nullptr;
#endif
}

// The runs of dimension `d` and those inside it.
const char* copy_dims(const BlockShape& shape, int d, char* target, const char* source, void* stream) {
  if (d == shape.num_dims) return copy_memory(target, source, shape.run_bytes, stream);
  const char* error = nullptr;
  for (int64_t i = 0; i < shape.sizes[d] && error == nullptr; ++i)
    error = copy_dims(shape, d + 1, target + i * shape.target_strides[d], source + i * shape.source_strides[d], stream);
  return error;
}

}  // namespace

const char* write(const Transfer (&transfers)[2], const int64_t* slots, int64_t num_tokens, int64_t kv_heads,
                  int64_t block_size, void* stream) {
  const WriteArguments arguments = {{transfers[0], transfers[1]}, slots, num_tokens, kv_heads, block_size};
  const unsigned blocks = static_cast<unsigned>((num_tokens + kWriteTokens - 1) / kWriteTokens);
  return launch(write_kernel, dim3(blocks), kMoveThreads, 4 * (kMoveThreads / kWarpLanes), stream, arguments);
}

const char* gather(const Transfer (&transfers)[2], const int32_t* block_table, int64_t table_stride,
                   const int32_t* cu_seq_lens, int64_t num_seqs, int64_t num_rows, int64_t kv_heads, int64_t block_size,
                   void* stream) {
  if (num_rows == 0 || num_seqs == 0) return nullptr;
  const GatherArguments arguments = {{transfers[0], transfers[1]}, block_table, cu_seq_lens, table_stride, num_seqs,
                                     kv_heads,                     block_size};
  return launch(gather_kernel, dim3(static_cast<unsigned>(num_rows)), kMoveThreads, 0, stream, arguments);
}

const char* copy_blocks(const std::vector<BlockTensors>& tensors, const int32_t* cells, int64_t cell_stride,
                        int64_t num_pairs, void* stream) {
  for (size_t first = 0; first < tensors.size();) {
    const BlockTensors& like = tensors[first];
    CopyArguments arguments = {like.shape, cells, cell_stride, like.source_stride, like.target_stride, 0, {}, {}};
    while (first < tensors.size() && arguments.num_tensors < kMaxCopyTensors && is_same(tensors[first], like)) {
      arguments.sources[arguments.num_tensors] = tensors[first].source;
      arguments.targets[arguments.num_tensors++] = tensors[first++].target;
    }
    const dim3 grid(static_cast<unsigned>(num_pairs), static_cast<unsigned>(arguments.num_tensors));
    const char* error = launch(copy_kernel, grid, kMoveThreads, 0, stream, arguments);
    if (error != nullptr) return error;
  }
  return nullptr;
}

const char* swap_blocks(const std::vector<BlockTensors>& tensors, const std::vector<BlockPair>& pairs, void* stream) {
  for (const BlockTensors& each : tensors) {
    const bool is_dense = each.shape.num_dims == 0 && each.source_stride == each.shape.run_bytes &&
                          each.target_stride == each.shape.run_bytes;
    for (size_t first = 0, end = 0; first < pairs.size(); first = end) {
      end = first + 1;
      for (; is_dense && end < pairs.size(); ++end)  // neighbors on both sides: one copy
        if (pairs[end].source != pairs[end - 1].source + 1 || pairs[end].target != pairs[end - 1].target + 1) break;
      BlockShape shape = each.shape;
      shape.run_bytes *= static_cast<int64_t>(end - first);
      const char* error = copy_dims(is_dense ? shape : each.shape, 0, each.target + pairs[first].target * each.target_stride,
                                    each.source + pairs[first].source * each.source_stride, stream);
      if (error != nullptr) return error;
    }
  }
  return nullptr;
}

const char* merge_states(const MergeArguments& arguments, void* stream) {
  constexpr int64_t kItems = kMoveThreads / kWarpLanes;
  const int64_t blocks = (arguments.num_rows * arguments.q_heads + kItems - 1) / kItems;
  if (blocks == 0) return nullptr;
  return launch(merge_kernel, dim3(static_cast<unsigned>(blocks)), kMoveThreads, 0, stream, arguments);
}

}  // namespace looseleaf::cuda
