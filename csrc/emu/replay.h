// Kernels by name, for launches that were recorded (replay.cpp). Tests write a file that lists the instances they need.
#pragma once

#include <cstring>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "looseleaf/device.h"

namespace looseleaf::emu {

using Replay = void (*)(const char* parameters, Dim3 grid, unsigned threads, size_t shared_bytes);

inline std::unordered_map<std::string, Replay>& replays() {
  static std::unordered_map<std::string, Replay> replays;
  return replays;
}

template <auto kKernel>
struct Replayed;

template <class... Parameters, void (*kKernel)(Parameters...)>
struct Replayed<kKernel> {
  explicit Replayed(const char* name) { replays()[name] = run; }

  static void run(const char* parameters, Dim3 grid, unsigned threads, size_t shared_bytes) {
    size_t end = 0;
    const auto next = [&]<class T>(T*) {
      const size_t start = (end + alignof(T) - 1) / alignof(T) * alignof(T);
      end = start + sizeof(T);
      T value;
      std::memcpy(&value, parameters + start, sizeof(T));
      return value;
    };
    const std::tuple<Parameters...> values{next(static_cast<Parameters*>(nullptr))...};  // braces: from first to last
    emu::launch(grid, threads, shared_bytes, [&] { std::apply(kKernel, values); });
  }
};

}  // namespace looseleaf::emu

#define LOOSELEAF_REPLAYED_(line, ...) \
  static const ::looseleaf::emu::Replayed<__VA_ARGS__> replayed_##line(#__VA_ARGS__)
#define LOOSELEAF_REPLAYED(line, ...) LOOSELEAF_REPLAYED_(line, __VA_ARGS__)
