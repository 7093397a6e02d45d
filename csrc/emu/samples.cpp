// Attention samples without torch: for the sanitizers, and for faults planted in the kernels' sources (tests/kernels).
// Prints the worst error against sums in double, or the message of the emulator.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include <sys/mman.h>

#include "looseleaf/attend_combine_kernel.h"
#include "looseleaf/attend_mma.h"
#include "looseleaf/attend_plan_kernel.h"
#include "looseleaf/attend_simt.h"

namespace looseleaf::cuda {
namespace {

// Memory of exactly this size, so that a sanitizer sees its ends.
template <class T>
struct Buffer {
  std::unique_ptr<T, void (*)(void*)> memory{nullptr, std::free};
  size_t count;
  Buffer(size_t count_, T value) : count(count_) {
    void* address = nullptr;
    if (posix_memalign(&address, 16, count * sizeof(T)) != 0) throw std::bad_alloc();
    memory.reset(static_cast<T*>(address));
    for (size_t i = 0; i < count; ++i) memory.get()[i] = value;
  }
  T& operator[](size_t i) { return memory.get()[i]; }
  T* data() { return memory.get(); }
};

struct Sample {
  std::vector<int> lens;
  int kv_heads, group, block_size, window;
  int num_blocks;  // of the grid
  bool is_mma;
  bool is_far = false;  // blocks lie 3 GiB apart
};

constexpr size_t kFarElements = size_t{3} << 29;

// Addresses without memory, but for the pages that are written.
struct FarBuffer {
  void* memory;
  size_t bytes;
  explicit FarBuffer(size_t bytes_) : bytes(bytes_) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
  }
  ~FarBuffer() { munmap(memory, bytes); }
};

constexpr int kDim = 64;
constexpr uint16_t kNotANumber = 0x7FFF;
constexpr int32_t kWild = 0x7FFFFFFF;

double value_of(uint16_t bits) { return to_float(BFloat{bits}); }

// One decode row for each sequence; dead slots, block 0 and cells past the end hold what must not be touched.
double error_of(const Sample& sample) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const size_t num_seqs = sample.lens.size();
  const int q_heads = sample.kv_heads * sample.group;
  int columns = 1, used = 0;
  for (const int len : sample.lens) {
    const int own = (len + sample.block_size - 1) / sample.block_size;
    columns = std::max(columns, own);
    used += own;
  }
  const size_t token = kDim, head = token * static_cast<size_t>(sample.block_size);
  const size_t dense = head * static_cast<size_t>(sample.kv_heads), block = sample.is_far ? kFarElements : dense;
  const size_t count = (static_cast<size_t>(used) + 1) * block;
  Buffer<uint16_t> near_k(sample.is_far ? 1 : count, kNotANumber), near_v(sample.is_far ? 1 : count, kNotANumber);
  const FarBuffer far(sample.is_far ? 4 * count : 1);
  uint16_t* const k = sample.is_far ? static_cast<uint16_t*>(far.memory) : near_k.data();
  uint16_t* const v = sample.is_far ? k + count : near_v.data();
  Buffer<uint16_t> q(num_seqs * static_cast<size_t>(q_heads) * kDim, 0), out(q.count, kNotANumber);
  Buffer<float> lse(num_seqs * static_cast<size_t>(q_heads), NAN);
  Buffer<int32_t> table(num_seqs * static_cast<size_t>(columns), kWild), lens(num_seqs, 0), sums(num_seqs + 1, 0);
  for (size_t i = 0; i < q.count; ++i) q[i] = to_bfloat(normal(random)).bits;
  int32_t next = used;
  for (size_t s = 0; s < num_seqs; ++s) {
    lens[s] = sample.lens[s];
    sums[s + 1] = static_cast<int32_t>(s) + 1;
    for (int t = 0; t < lens[s]; ++t) {
      int32_t& cell = table[s * static_cast<size_t>(columns) + static_cast<size_t>(t / sample.block_size)];
      if (t % sample.block_size == 0) cell = next--;
      for (size_t h = 0; h < static_cast<size_t>(sample.kv_heads); ++h)
        for (size_t d = 0; d < kDim; ++d) {
          const size_t at = static_cast<size_t>(cell) * block + h * head +
                            static_cast<size_t>(t % sample.block_size) * token + d;
          k[at] = to_bfloat(normal(random)).bits;
          v[at] = to_bfloat(normal(random)).bits;
        }
    }
  }
  AttendArguments a = {};
  a.element = a.cache_element = Element::kBFloat16;
  a.q = reinterpret_cast<const char*>(q.data());
  a.q_head_stride = a.out_head_stride = 2 * kDim;
  a.q_row_stride = a.out_row_stride = 2 * kDim * q_heads;
  const auto stride = [](size_t elements) { return static_cast<int64_t>(2 * elements); };
  a.k = {reinterpret_cast<const char*>(k), stride(block), stride(head), stride(token), kDim, nullptr, 0};
  a.v = a.k;
  a.v.data = reinterpret_cast<const char*>(v);
  a.block_table = table.data();
  a.table_stride = columns;
  a.seq_lens = lens.data();
  a.cu_query_lens = sums.data();
  a.num_seqs = a.num_rows = static_cast<int64_t>(num_seqs);
  a.q_heads = q_heads;
  a.kv_heads = sample.kv_heads;
  a.block_size = sample.block_size;
  a.scale = 0.125f;
  a.causal = true;
  a.window = sample.window;
  a.out = reinterpret_cast<char*>(out.data());
  a.lse = lse.data();
  a.lse_row_stride = q_heads;

  using Shape = MmaShape<BFloat, kDim, 1>;
  Plan plan = {};
  plan.tile_rows = kColumnRows;
  plan.num_blocks = sample.num_blocks;
  const size_t tiles = static_cast<size_t>(max_row_tiles(a, plan.tile_rows));
  Buffer<int64_t> first_tile(num_seqs + 1, -1), first_unit(tiles + 1, -1);
  Buffer<float> states(static_cast<size_t>(2 * plan.num_blocks * plan.tile_rows) * (kDim + 2), NAN);
  plan.first_tile = first_tile.data();
  plan.first_unit = first_unit.data();
  plan.states = states.data();
  const dim3 grid(static_cast<unsigned>(plan.num_blocks));
  launch(plan_kernel, dim3(1), kPlanThreads, kPlanSharedBytes, nullptr, a, plan);
  if (sample.is_mma) {
    launch(attend_mma_kernel<Shape>, grid, Shape::kThreads, Shape::kSharedBytes, nullptr, a, plan);
  } else {
    launch(attend_simt_kernel<BFloat>, grid, kSimtWarps * kWarpLanes, SimtMemory(a, kSimtWarps).bytes(), nullptr, a, plan);
  }
  launch(combine_kernel, grid, kCombineThreads, 0, nullptr, a, plan);

  double worst = 0.0;
  for (size_t s = 0; s < num_seqs; ++s) {
    const int len = sample.lens[s], first = sample.window > 0 ? std::max(0, len - sample.window) : 0;
    for (int h = 0; h < q_heads; ++h) {
      const size_t row = s * static_cast<size_t>(q_heads) + static_cast<size_t>(h);
      std::vector<double> exact(kDim, 0.0);
      double total = 0.0;
      for (int t = first; t < len; ++t) {
        const size_t cell = s * static_cast<size_t>(columns) + static_cast<size_t>(t / sample.block_size);
        const size_t at = static_cast<size_t>(table[cell]) * block + static_cast<size_t>(h / sample.group) * head +
                          static_cast<size_t>(t % sample.block_size) * token;
        double product = 0.0;
        for (size_t d = 0; d < kDim; ++d) product += value_of(q[row * kDim + d]) * value_of(k[at + d]);
        const double share = std::exp(product * 0.125);
        total += share;
        for (size_t d = 0; d < kDim; ++d) exact[d] += share * value_of(v[at + d]);
      }
      for (size_t d = 0; d < kDim; ++d) {
        const double error = std::fabs(value_of(out[row * kDim + d]) - (total > 0.0 ? exact[d] / total : 0.0));
        if (!(error <= worst)) worst = error;  // a NaN stays
        if (std::isnan(error)) return error;
      }
    }
  }
  return worst;
}

int run() {
  const std::vector<Sample> samples = {
      {{300, 17, 0, 1, 255}, 2, 4, 16, 0, 4, true},  {{300, 17, 0, 1, 255}, 2, 4, 16, 0, 4, false},
      {{130, 64, 65}, 1, 8, 8, 0, 3, true},          {{130, 64, 65}, 1, 8, 8, 0, 3, false},
      {{200, 90}, 1, 3, 24, 50, 2, true},            {{200, 90}, 1, 3, 24, 50, 2, false},
      {{500}, 1, 5, 8, 0, 8, true},                  {{500}, 1, 5, 8, 0, 8, false},
      {{900}, 1, 2, 25, 0, 1, true},                 {{900, 5}, 1, 2, 9, 300, 2, true},
      {{40}, 1, 4, 16, 0, 2, true, true},            {{40}, 1, 4, 16, 0, 2, false, true},
  };
  int passed = 0;
  for (const Sample& sample : samples) {
    try {
      const double error = error_of(sample);
      if (error <= 2e-2) {
        ++passed;
      } else {
        std::printf("value: error %g\n", error);
      }
    } catch (const std::runtime_error& error) {
      std::printf("stopped: %s\n", error.what());
    }
  }
  std::printf("%d of %zu samples\n", passed, samples.size());
  return passed == static_cast<int>(samples.size()) ? 0 : 1;
}

}  // namespace
}  // namespace looseleaf::cuda

// Arguments: order, seed.
int main(int argc, char** argv) {
  const int order = argc > 1 ? std::atoi(argv[1]) : 0;
  looseleaf::emu::settings().order = static_cast<looseleaf::emu::Order>(order);
  looseleaf::emu::settings().seed = argc > 2 ? static_cast<uint64_t>(std::atoi(argv[2])) : 0;
  return looseleaf::cuda::run();
}
