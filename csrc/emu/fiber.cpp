// Fibers: a switch of a dozen instructions on x86-64, ucontext elsewhere. The sanitizers are told of every switch.
#include "fiber.h"

#include "thread_sanitizer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, size_t* old_size);
extern "C" void __asan_unpoison_memory_region(const volatile void* address, size_t size);
#endif

namespace looseleaf::emu {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 1 << 19;  // red zones make frames several times larger
thread_local const void* scheduler_bottom = nullptr;
thread_local size_t scheduler_bytes = 0;
#else
constexpr size_t kStackBytes = 1 << 17;
#endif
constexpr size_t kGuardBytes = 4096;
#if defined(LOOSELEAF_THREAD_SANITIZER)
constexpr unsigned kNoOrder = 1;  // a switch is not a meeting
thread_local void* scheduler_watched = nullptr;
#endif

}  // namespace

#if defined(__x86_64__)
extern "C" void looseleaf_switch_stack(void** save, void* load);
// Registers that a callee keeps, then the stack pointer; the return address stands on the new stack.
asm(R"(
.text
.hidden looseleaf_switch_stack
.globl looseleaf_switch_stack
.type looseleaf_switch_stack, @function
looseleaf_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size looseleaf_switch_stack, .-looseleaf_switch_stack
)");
#else
static void looseleaf_switch_stack(void** save, void* load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(load));
}
#endif

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuardBytes, PROT_NONE);  // a frame that is too large stops here
  stack_ = static_cast<char*>(memory) + kGuardBytes;
#if defined(LOOSELEAF_THREAD_SANITIZER)
  watched_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(LOOSELEAF_THREAD_SANITIZER)
  __tsan_destroy_fiber(watched_);
#endif
  munmap(stack_ - kGuardBytes, kStackBytes + kGuardBytes);
}

void Fiber::reset(void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStackBytes);  // what the last thread left there
  fake_stack_ = nullptr;
#endif
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes);
  *--top = nullptr;  // where `entry` would return to, and the alignment that a call leaves
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context_ = top;
#else
  auto* context = new (stack_) ucontext_t;  // at the low end, far from the frames
  getcontext(context);
  context->uc_stack.ss_sp = stack_ + sizeof(ucontext_t);
  context->uc_stack.ss_size = kStackBytes - sizeof(ucontext_t);
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  context_ = context;
#endif
}

void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_, stack_, kStackBytes);
#endif
#if defined(LOOSELEAF_THREAD_SANITIZER)
  scheduler_watched = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(watched_, kNoOrder);
#endif
  looseleaf_switch_stack(&scheduler_, context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_, nullptr, nullptr);
#endif
}

void Fiber::leave(bool is_last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(is_last ? nullptr : &fake_stack_, scheduler_bottom, scheduler_bytes);
#endif
#if defined(LOOSELEAF_THREAD_SANITIZER)
  __tsan_switch_to_fiber(scheduler_watched, kNoOrder);
#endif
  looseleaf_switch_stack(&context_, scheduler_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_bottom, &scheduler_bytes);
#endif
  static_cast<void>(is_last);
}

void Fiber::arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_bytes);
#endif
}

}  // namespace looseleaf::emu
