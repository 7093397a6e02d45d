// Chooses the instruction set at run time: by the processor's features, and for bf16 by its vendor too.
//
// On Intel vdpbf16ps does half the multiply-adds of an fp32 FMA in a cycle, on AMD Zen 4 it is the other way round, so Intel
// widens bf16 to fp32 in registers and AMD multiplies pairs; prefill of bf16 takes AMX where it is. The choice is made once;
// LOOSELEAF_ISA names another set.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "attend.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace looseleaf {
namespace {

std::atomic<const char*> forced{nullptr};

#if defined(__x86_64__)
// Linux gives a process the tile registers when it asks (ARCH_REQ_XCOMP_PERM, feature 18); other systems: not asked.
bool may_use_tiles() {
#if defined(__linux__)
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
  return false;
#endif
}
#endif

struct Processor {
  bool has_avx2 = false, has_avx512 = false, has_bf16 = false, has_vbmi = false, has_amx = false, is_amd = false;
  Processor() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    has_bf16 = has_avx512 && __builtin_cpu_supports("avx512bf16");
    has_vbmi = has_avx512 && __builtin_cpu_supports("avx512vbmi");
    is_amd = __builtin_cpu_is("amd");
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kTilesAndBf16 = (1u << 24) | (1u << 22);
    has_amx = has_bf16 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTilesAndBf16) == kTilesAndBf16 &&
              may_use_tiles();
#endif
  }
};

// The sets that were compiled in and that this processor has, best last; pairs are for AMD, see above.
struct Sets {
  Processor processor;
  Kernels sets[5];
  int count = 0;
  Sets() {
#ifdef LOOSELEAF_PORTABLE
    sets[count++] = kPortableKernels;
#endif
#ifdef LOOSELEAF_AVX2
    if (processor.has_avx2) sets[count++] = kAvx2Kernels;
#endif
#ifdef LOOSELEAF_AVX512
    if (!processor.has_avx512) return;
    Kernels kernels = kAvx512Kernels;
#ifdef LOOSELEAF_AVX512_VBMI
    if (processor.has_vbmi) kernels.unpackers = kVbmiUnpackers;
#endif
    sets[count++] = kernels;
#ifdef LOOSELEAF_AVX512_BF16
    if (processor.has_bf16) {
      sets[count] = kernels;
      sets[count].bfloat16 = kAvx512Bf16Kernels;
      sets[count++].name = "avx512_bf16";
    }
#endif
#ifdef LOOSELEAF_AVX512_AMX
    if (processor.has_amx) {
      sets[count] = kernels;
      sets[count].bfloat16.prefill = kAmxKernels.prefill;
      sets[count++].name = "avx512_amx";
    }
#endif
#endif
  }
  const Kernels* named(const char* name) const {
    for (int i = 0; i < count; ++i)
      if (std::strcmp(sets[i].name, name) == 0) return sets + i;
    return nullptr;
  }
  const Kernels* best(Element element) const {
    const bool is_by_pairs = processor.is_amd && !processor.has_amx && element == Element::kBFloat16;
    for (int i = count - 1; i >= 0; --i)
      if (is_by_pairs || std::strcmp(sets[i].name, "avx512_bf16") != 0) return sets + i;
    return count > 0 ? sets + count - 1 : nullptr;
  }
};

}  // namespace

void force_kernels(const char* name) {
  static const char* const kNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "avx512_amx"};
  const char* known = name == nullptr ? nullptr : "(unknown)";
  for (const char* candidate : kNames)
    if (name != nullptr && std::strcmp(name, candidate) == 0) known = candidate;
  forced.store(known, std::memory_order_relaxed);
}

const char* forced_kernels() {
  static const char* const chosen = std::getenv("LOOSELEAF_ISA");
  const char* name = forced.load(std::memory_order_relaxed);
  name = name == nullptr ? chosen : name;
  return name == nullptr || *name == '\0' ? nullptr : name;
}

const Kernels* kernels_for(Element cache_element) {
  static const Sets sets;
  const char* name = forced_kernels();
  return name == nullptr ? sets.best(cache_element) : sets.named(name);
}

}  // namespace looseleaf
