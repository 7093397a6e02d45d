// Instances of the attention kernel on tensor cores: 2 elements x (3 dims with one column tile, 2 of them with two), and
// for each of the three elements of 8 bits 2 x (2 dims with one, 1 of them with two).
#include "attend_kernels.h"
#include "looseleaf/attend_mma.h"

namespace looseleaf::cuda {
namespace {

template <class Shape>
const char* run(const AttendArguments& a, const Plan& plan, void* stream) {
  static_assert(Shape::kSharedBytes <= kMostSharedBytes);
  return launch(attend_mma_kernel<Shape>, dim3(static_cast<unsigned>(plan.num_blocks)), Shape::kThreads,
                Shape::kSharedBytes, stream, a, plan);
}

// Caches of 8 bits: dims to 64 share the instances of 128.
template <class T, class Stored>
const char* run_8bit(const AttendArguments& a, const Plan& plan, void* stream) {
  const int64_t dim = a.k.dim > a.v.dim ? a.k.dim : a.v.dim;
  const bool has_two_tiles = plan.tile_rows > kColumnRows;
  if (dim <= 128)
    return (has_two_tiles ? run<MmaShape<T, 128, 2, Stored>> : run<MmaShape<T, 128, 1, Stored>>)(a, plan, stream);
  return run<MmaShape<T, 256, 1, Stored>>(a, plan, stream);
}

template <class T>
const char* run_for(const AttendArguments& a, const Plan& plan, void* stream) {
  if (a.cache_element == Element::kFloat8E4M3) return run_8bit<T, E4M3>(a, plan, stream);
  if (a.cache_element == Element::kFloat8E5M2) return run_8bit<T, E5M2>(a, plan, stream);
  if (a.cache_element == Element::kInt8) return run_8bit<T, int8_t>(a, plan, stream);
  const int64_t dim = a.k.dim > a.v.dim ? a.k.dim : a.v.dim;
  const bool has_two_tiles = plan.tile_rows > kColumnRows;
  if (dim <= 64) return (has_two_tiles ? run<MmaShape<T, 64, 2>> : run<MmaShape<T, 64, 1>>)(a, plan, stream);
  if (dim <= 128) return (has_two_tiles ? run<MmaShape<T, 128, 2>> : run<MmaShape<T, 128, 1>>)(a, plan, stream);
  return run<MmaShape<T, 256, 1>>(a, plan, stream);
}

bool is_multiple(const CacheView& cache, int64_t element_bytes, int64_t bytes) {
  return (reinterpret_cast<uint64_t>(cache.data) | static_cast<uint64_t>(cache.block_stride | cache.head_stride |
                                                                         cache.token_stride | element_bytes * cache.dim)) %
             static_cast<uint64_t>(bytes) ==
         0;
}

}  // namespace

int64_t mma_tile_rows(const AttendArguments& a, int64_t max_query_len) {
  const int64_t dim = a.k.dim > a.v.dim ? a.k.dim : a.v.dim;
  const int64_t bytes = bytes_of(a.cache_element);
  const bool is_fit = (a.element == Element::kFloat16 || a.element == Element::kBFloat16) && (a.cache_element == a.element || is_8bit(a.cache_element)) &&
                      dim <= 256 && a.block_size >= 8 && is_multiple(a.k, bytes, 16) && is_multiple(a.v, bytes, 16) &&
                      (reinterpret_cast<uint64_t>(a.q) | static_cast<uint64_t>(a.q_row_stride | a.q_head_stride)) % 4 == 0;
  if (!is_fit) return 0;
  // The batch must not show in a result that is to be free of it: there the group alone decides.
  const int64_t rows = a.batch_invariant ? a.group() : a.group() * max_query_len;
  return rows > kColumnRows && dim <= 128 ? 2 * kColumnRows : kColumnRows;
}

const char* launch_mma(const AttendArguments& a, const Plan& plan, void* stream) {
  return a.element == Element::kFloat16 ? run_for<Half>(a, plan, stream) : run_for<BFloat>(a, plan, stream);
}

}  // namespace looseleaf::cuda
