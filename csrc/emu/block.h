// A block that runs: its threads, warps and shared memory. Inside the emulator only.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulator.h"
#include "fiber.h"

namespace looseleaf::emu {

struct AsyncCopy {
  char* target;
  const char* source;
  int bytes, source_bytes;
  int group;
  Place place;
};

struct Thread {
  enum class State { kReady, kBlocked, kDone };

  Fiber fiber;
  State state = State::kDone;
  Dim3 index;
  unsigned number = 0;
  std::vector<AsyncCopy> copies;
  int open_group = 0;
  // Operands of the warp operation that the thread waits in.
  const void* input = nullptr;
  void* output = nullptr;
  int64_t detail = 0;

  unsigned lane() const { return number % 32; }
  unsigned warp() const { return number / 32; }
};

using Lanes = Thread* [32];
using Complete = void (*)(Lanes& lanes);

struct Warp {
  Complete complete = nullptr;
  const char* name = nullptr;
  Place place;
  uint32_t mask = 0, arrived = 0;
  uint32_t live = 0;
  uint32_t epoch = 0;  // barriers passed by all its lanes
};

// What happened to two bytes of shared memory. Threads count from 1; 0: nobody.
struct Granule {
  static constexpr int32_t kManyLanes = -1;  // several lanes of one warp (`reader_warp`)
  static constexpr int32_t kManyWarps = -2;

  uint32_t block_serial = 0;
  int32_t writer = 0, reader = 0, reader_warp = 0;
  uint32_t write_block_epoch = 0, write_warp_epoch = 0, read_block_epoch = 0, read_warp_epoch = 0;
  int32_t copies = 0;  // asynchronous copies on their way
  int32_t copier = 0;
};

class Block {
 public:
  void run(Dim3 index, Dim3 size, Dim3 grid, size_t shared_bytes, const std::function<void()>& kernel);

  // Where its threads meet, for ThreadSanitizer: 0 all of them, from 1 on those of a warp. Two meetings in a row have two
  // addresses, since who comes to the second may be there before others have left the first.
  const void* meeting(unsigned number, uint32_t epoch) const;
  // After the last block of a launch.
  void end_launch();
  void make_ready(Thread& thread);
  void leave(bool is_last = false) { current->fiber.leave(is_last); }
  void barrier(Place place);
  void warp_operation(const char* name, Complete complete, uint32_t mask, const void* input, void* output, int64_t detail,
                      Place place);

  Dim3 index, size, grid;
  char* shared = nullptr;
  size_t shared_bytes = 0;
  uint32_t serial = 0;
  uint32_t epoch = 0;  // barriers passed by the whole block
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<Granule> granules;
  Thread* current = nullptr;
  std::string error;
  std::mt19937_64 random;

 private:
  static void enter();
  void finish_thread();
  void open_barrier();
  Thread& next();
  std::string who_waits() const;

  void make_shared(size_t bytes);

  std::vector<std::unique_ptr<char, void (*)(void*)>> memory_;  // of blocks that ThreadSanitizer may not mix up
  std::vector<unsigned> ready_;
  unsigned num_threads_ = 0, num_done_ = 0, num_at_barrier_ = 0;
  Place barrier_place_;
  const std::function<void()>* kernel_ = nullptr;
};

Block& running();

}  // namespace looseleaf::emu
