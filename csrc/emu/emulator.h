// Runs CUDA kernels on the CPU, for tests: one fiber for each CUDA thread, one block at a time.
//
// A kernel is compiled by the C++ compiler of the system from the same source that nvcc compiles; looseleaf/device.h is
// where the two differ. Whatever CUDA leaves undefined and this can see stops the launch with an exception that names
// block, thread, file and line: divergent barriers and warp operations, masks that name lanes that are not there,
// shared memory that is out of range, misaligned, never written, read before its cp.async has been waited for, or
// touched by two threads without a barrier between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>

namespace looseleaf::emu {

// Where a kernel calls something.
using Place = std::source_location;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr unsigned count() const { return x * y * z; }
};

// Who runs next, and in which order blocks run. Right kernels give the same result under each.
enum class Order { kRoundRobin, kReverse, kRandom };

struct Settings {
  Order order = Order::kRoundRobin;
  uint64_t seed = 0;
  int64_t processors = 4;  // that the card pretends to have: launches take so many blocks
};
Settings& settings();

// What has been executed since `counts() = {}`: evidence for tests that look at what a kernel does.
struct Counts {
  int64_t matrix_products = 0, matrix_loads = 0, bank_conflicts = 0;
  int64_t async_copies = 0;  // that read memory
};
Counts& counts();

void launch(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

// Where launches go instead, if anywhere: tests run what the CUDA compiler made of the same kernel.
struct Elsewhere {
  // `sizes`: the grid's x and y, threads of a block, bytes of shared memory, bytes of parameters.
  void (*launch)(const void* kernel, const void* parameters, const int64_t* sizes) = nullptr;
  void (*allow)(const void* memory, int64_t bytes) = nullptr;  // memory that no argument of the operator names
};
Elsewhere& elsewhere();

// Of the running thread.
Dim3 thread_index();
Dim3 block_index();
Dim3 block_size();
Dim3 grid_size();
unsigned lane();
char* shared_memory();

// Ends the launch.
[[noreturn]] void fail(Place place, const std::string& what);

void sync_threads(Place place);
void sync_warp(uint32_t mask, Place place);
uint64_t shuffle(uint32_t mask, uint64_t bits, unsigned source, Place place);
uint32_t ballot(uint32_t mask, bool vote, Place place);
// D = A x B + C of mma.m16n8k16 with fp32 sums; fragments as PTX lays them out.
void matrix_product(bool is_bfloat, float d[4], const uint32_t a[4], const uint32_t b[2], Place place);
// ldmatrix.x4, each lane giving the address of one row of eight 16-bit elements.
void matrix_load(uint32_t out[4], const void* row, bool is_transposed, Place place);
// movmatrix: the transpose of an 8 x 8 matrix of 16-bit elements.
uint32_t matrix_transpose(uint32_t value, Place place);

// Copies when the group is waited for, not before. `source_bytes` below `bytes`: the rest becomes 0.
void copy_async(void* target, const void* source, int bytes, int source_bytes, Place place);
void commit_copies();
void wait_copies(int allowed_groups, Place place);

// Checks an access of the running thread to shared memory, and remembers it for the accesses to come.
void read_shared(const void* address, size_t bytes, Place place);
void write_shared(const void* address, size_t bytes, Place place);
// Checks that global memory is read and written at addresses that the hardware takes.
void check_alignment(const void* address, size_t bytes, Place place);
void write_global(void* address, size_t bytes, Place place);

}  // namespace looseleaf::emu
