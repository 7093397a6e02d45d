// One stack that can be left and taken up again: a CUDA thread of the emulator runs on one.
#pragma once

#include <cstddef>

namespace looseleaf::emu {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the fiber start with `entry`, which never returns, when it is next resumed.
  void reset(void (*entry)());
  // From the scheduler into the fiber, until it leaves.
  void resume();
  // From the fiber back to the scheduler; `is_last`: it will never be resumed.
  void leave(bool is_last);
  // The first thing that `entry` calls.
  static void arrived();

 private:
  char* stack_;
  void* context_ = nullptr;      // of the fiber while it is not running
  void* scheduler_ = nullptr;    // of the scheduler while the fiber runs
  void* fake_stack_ = nullptr;   // AddressSanitizer's
  void* scheduler_fake_ = nullptr;
  void* watched_ = nullptr;  // ThreadSanitizer's
};

}  // namespace looseleaf::emu
