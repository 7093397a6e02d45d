// The words of CUDA that kernels use, for a C++ compiler: what looseleaf/device.h includes in place of the CUDA headers.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

#define threadIdx (::looseleaf::emu::thread_index())
#define blockIdx (::looseleaf::emu::block_index())
#define blockDim (::looseleaf::emu::block_size())
#define gridDim (::looseleaf::emu::grid_size())

// A last parameter that says where the call stands.
#define LOOSELEAF_HERE ::looseleaf::emu::Place here = ::looseleaf::emu::Place::current()

using dim3 = ::looseleaf::emu::Dim3;
using cudaStream_t = void*;
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace looseleaf::emu {

// Of a kernel, one after another as CUDA lays them out.
struct Parameters {
  std::vector<char> bytes;

  void append(const void* value, size_t size, size_t alignment) {
    const size_t start = (bytes.size() + alignment - 1) / alignment * alignment;
    bytes.resize(start + size);
    std::memcpy(bytes.data() + start, value, size);
  }
};

template <class T>
T shuffle_value(uint32_t mask, T value, unsigned source, Place place) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, source, place);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace looseleaf::emu

inline void __syncthreads(LOOSELEAF_HERE) { looseleaf::emu::sync_threads(here); }
inline void __syncwarp(uint32_t mask = 0xFFFFFFFFu, LOOSELEAF_HERE) { looseleaf::emu::sync_warp(mask, here); }
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, LOOSELEAF_HERE) {
  return looseleaf::emu::shuffle_value(mask, value, static_cast<unsigned>(source) % 32, here);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, LOOSELEAF_HERE) {
  return looseleaf::emu::shuffle_value(mask, value, looseleaf::emu::lane() ^ static_cast<unsigned>(bits), here);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, LOOSELEAF_HERE) {
  const unsigned lane = looseleaf::emu::lane();
  return looseleaf::emu::shuffle_value(mask, value, lane < delta ? lane : lane - delta, here);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, LOOSELEAF_HERE) {
  const unsigned lane = looseleaf::emu::lane();
  return looseleaf::emu::shuffle_value(mask, value, lane + delta > 31 ? lane : lane + delta, here);
}
inline uint32_t __ballot_sync(uint32_t mask, bool vote, LOOSELEAF_HERE) { return looseleaf::emu::ballot(mask, vote, here); }
inline bool __any_sync(uint32_t mask, bool vote, LOOSELEAF_HERE) { return looseleaf::emu::ballot(mask, vote, here) != 0; }
inline bool __all_sync(uint32_t mask, bool vote, LOOSELEAF_HERE) {
  return looseleaf::emu::ballot(mask, !vote, here) == 0;
}

// Threads take turns only at barriers and warp operations, so each of these is one step.
template <class T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = old < value ? value : old;
  return old;
}
template <class T>
T atomicCAS(T* address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
inline void __threadfence() {}
