// Threads are given by the caller: torch's own pool in the library, none or plain ones in the sanitizer program.
#pragma once

#include <cstdint>

namespace looseleaf {

struct Threads {
  int64_t count;
  // Calls task(context, index) once for each index below `count`, in any order, at the same time or not.
  void (*run)(int64_t count, void (*task)(void* context, int64_t index), void* context);

  template <class Task>
  void operator()(int64_t num_tasks, const Task& task) const {
    if (num_tasks <= 1) {
      if (num_tasks == 1) task(0);
      return;
    }
    run(num_tasks, [](void* context, int64_t index) { (*static_cast<const Task*>(context))(index); },
        const_cast<Task*>(&task));
  }
};

// Memory of this thread that is kept between calls, 64-byte aligned; what it held is lost.
char* thread_scratch(int64_t num_bytes);
// The same for the thread that makes a call, read and written by all of that call's tasks.
char* call_scratch(int64_t num_bytes);

}  // namespace looseleaf
