// What ThreadSanitizer is told where it watches kernels: each CUDA thread is a thread of its own, barriers order what is
// before and after them, and nothing else does, shuffles and matrix operations included. The emulator itself is not
// watched; its memory functions are, as what the running thread does. Without LOOSELEAF_THREAD_SANITIZER: nothing.
#pragma once

#include <cstddef>

#if defined(LOOSELEAF_THREAD_SANITIZER)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, size_t size);
void __tsan_write_range(void* address, size_t size);
}
#endif

namespace looseleaf::emu::watched {

#if defined(LOOSELEAF_THREAD_SANITIZER)

constexpr bool kIsOn = true;
// What is done before `arrive` by any thread comes before what is done after `leave` by any other.
inline void arrive(const void* meeting) { __tsan_release(const_cast<void*>(meeting)); }
inline void leave(const void* meeting) { __tsan_acquire(const_cast<void*>(meeting)); }
inline void read(const void* address, size_t bytes) { __tsan_read_range(const_cast<void*>(address), bytes); }
inline void write(void* address, size_t bytes) { __tsan_write_range(address, bytes); }

#else

constexpr bool kIsOn = false;
inline void arrive(const void*) {}
inline void leave(const void*) {}
inline void read(const void*, size_t) {}
inline void write(void*, size_t) {}

#endif

}  // namespace looseleaf::emu::watched
