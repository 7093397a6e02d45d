// Scratch memory: grows, is never cleared, goes with its thread.
#include "threads.h"

#include <cstddef>
#include <new>

namespace looseleaf {
namespace {

class Buffer {
 public:
  ~Buffer() { release(); }
  char* reserve(int64_t num_bytes) {
    if (num_bytes > size_) {
      release();
      memory_ = static_cast<char*>(::operator new(static_cast<std::size_t>(num_bytes), std::align_val_t{64}));
      size_ = num_bytes;
    }
    return memory_;
  }

 private:
  void release() {
    ::operator delete(memory_, std::align_val_t{64});
    memory_ = nullptr;
    size_ = 0;
  }
  char* memory_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace

char* thread_scratch(int64_t num_bytes) {
  static thread_local Buffer buffer;
  return buffer.reserve(num_bytes);
}

char* call_scratch(int64_t num_bytes) {
  static thread_local Buffer buffer;
  return buffer.reserve(num_bytes);
}

}  // namespace looseleaf
