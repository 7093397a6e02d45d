// Where nvcc (or NVRTC) and the emulator differ; everything else of the kernels is the same for both.
//
// Kernels keep to what stands here and in ptx.h: shared memory only through Shared and its two accesses, launches only
// through launch(), warp operations with full masks, no other intrinsics.
#pragma once

#if defined(__CUDACC__)
#if !defined(__CUDACC_RTC__)
#include <cuda_runtime.h>
#endif
#define LOOSELEAF_HERE int = 0
#else
#include "emu/cuda.h"
#endif

#include "looseleaf/element.h"

#define LOOSELEAF_DEVICE __device__ __forceinline__

namespace looseleaf {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr int kWarpLanes = 32;

#if defined(__CUDACC__)

template <class T>
using Shared = T*;

template <class T>
LOOSELEAF_DEVICE T load_shared(Shared<T> memory, int64_t index) {
  return memory[index];
}
template <class T>
LOOSELEAF_DEVICE void store_shared(Shared<T> memory, int64_t index, T value) {
  memory[index] = value;
}
extern __shared__ __align__(128) char dynamic_shared_memory[];
template <class T>
LOOSELEAF_DEVICE Shared<T> shared_at(int64_t bytes) {
  return reinterpret_cast<T*>(dynamic_shared_memory + bytes);
}
template <class T>
LOOSELEAF_DEVICE T load_global(const void* address) {
  return __ldg(static_cast<const T*>(address));
}
template <class T>
LOOSELEAF_DEVICE void store_global(T* address, T value) {
  *address = value;
}

#if !defined(__CUDACC_RTC__)
// Returns what went wrong, or null.
template <class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, int64_t shared_bytes, void* stream,
                   const Arguments&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  kernel<<<grid, threads, static_cast<size_t>(shared_bytes), static_cast<cudaStream_t>(stream)>>>(arguments...);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
#endif

LOOSELEAF_DEVICE float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#else

// A pointer into shared memory whose accesses are checked.
template <class T>
struct Shared {
  T* address;
  Shared operator+(int64_t count) const { return {address + count}; }
};

template <class T>
T load_shared(Shared<T> memory, int64_t index, LOOSELEAF_HERE) {
  emu::read_shared(memory.address + index, sizeof(T), here);
  return memory.address[index];
}
template <class T>
void store_shared(Shared<T> memory, int64_t index, std::type_identity_t<T> value, LOOSELEAF_HERE) {
  emu::write_shared(memory.address + index, sizeof(T), here);
  memory.address[index] = value;
}
template <class T>
Shared<T> shared_at(int64_t bytes) {
  return {reinterpret_cast<T*>(emu::shared_memory() + bytes)};
}
template <class T>
T load_global(const void* address, LOOSELEAF_HERE) {
  emu::check_alignment(address, sizeof(T), here);
  return *static_cast<const T*>(address);
}
template <class T>
void store_global(T* address, std::type_identity_t<T> value, LOOSELEAF_HERE) {
  emu::write_global(address, sizeof(T), here);
  *address = value;
}

template <class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, int64_t shared_bytes, void* /*stream*/,
                   const Arguments&... arguments) {
  if (emu::elsewhere().launch != nullptr) {
    emu::Parameters parameters;
    (parameters.append(&arguments, sizeof(Arguments), alignof(Arguments)), ...);
    const int64_t sizes[] = {grid.x, grid.y, threads, shared_bytes, static_cast<int64_t>(parameters.bytes.size())};
    emu::elsewhere().launch(reinterpret_cast<const void*>(kernel), parameters.bytes.data(), sizes);
    return nullptr;
  }
  emu::launch(grid, threads, static_cast<size_t>(shared_bytes), [&] { kernel(arguments...); });
  return nullptr;
}

inline float exp2_fast(float x) { return std::exp2(x); }

#endif

}  // namespace looseleaf
