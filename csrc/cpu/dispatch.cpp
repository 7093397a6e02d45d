// Chooses the instruction set at run time: by the processor's features, and for bf16 by its vendor too.
//
// vdpbf16ps does 16 multiply-adds a cycle on Intel and 64 on AMD (512-bit fp32 FMA: 32 on both), so Intel widens bf16 to
// fp32 in registers and AMD multiplies pairs. The choice is made once; LOOSELEAF_ISA names another set.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "attend.h"

namespace looseleaf {
namespace {

std::atomic<const char*> forced{nullptr};

struct Processor {
  bool has_avx2 = false, has_avx512 = false, has_bf16 = false, has_vbmi = false, is_amd = false;
  Processor() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    has_bf16 = has_avx512 && __builtin_cpu_supports("avx512bf16");
    has_vbmi = has_avx512 && __builtin_cpu_supports("avx512vbmi");
    is_amd = __builtin_cpu_is("amd");
#endif
  }
};

// The sets that were compiled in and that this processor has, best last.
struct Sets {
  Processor processor;
  Kernels sets[4];
  int count = 0;
  Sets() {
#ifdef LOOSELEAF_PORTABLE
    sets[count++] = kPortableKernels;
#endif
#ifdef LOOSELEAF_AVX2
    if (processor.has_avx2) sets[count++] = kAvx2Kernels;
#endif
#ifdef LOOSELEAF_AVX512
    if (processor.has_avx512) add_avx512(kAvx512Kernels);
#ifdef LOOSELEAF_AVX512_BF16
    if (processor.has_bf16) add_avx512(kAvx512Bf16Kernels);
#endif
#endif
  }
#ifdef LOOSELEAF_AVX512
  void add_avx512(const Kernels& kernels) {
    sets[count] = kernels;
#ifdef LOOSELEAF_AVX512_VBMI
    if (processor.has_vbmi) sets[count].unpackers = kVbmiUnpackers;
#endif
    ++count;
  }
#endif
  const Kernels* named(const char* name) const {
    for (int i = 0; i < count; ++i)
      if (std::strcmp(sets[i].name, name) == 0) return sets + i;
    return nullptr;
  }
  const Kernels* best(Element element) const {
    const bool is_by_pairs = processor.is_amd && element == Element::kBFloat16;
    for (int i = count - 1; i >= 0; --i)
      if (is_by_pairs || std::strcmp(sets[i].name, "avx512_bf16") != 0) return sets + i;
    return count > 0 ? sets + count - 1 : nullptr;
  }
};

}  // namespace

void force_kernels(const char* name) {
  static const char* const kNames[] = {"portable", "avx2", "avx512", "avx512_bf16"};
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
