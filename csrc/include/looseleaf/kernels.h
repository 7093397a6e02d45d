// What each instruction set offers to the driver (csrc/cpu/attend.cpp), and the memory it works in.
#pragma once

#include "looseleaf/attend_arguments.h"

namespace looseleaf {

constexpr int64_t kStepTokens = 64;
constexpr int64_t kStateLanes = 16;
// A tile of prefill: keys that are packed at a time, and query rows (all of one KV head) that share them.
constexpr int64_t kTileKeys = 128;
constexpr int64_t kTileRows = 256;

// Online softmax of the rows of one sequence over some of its tokens. Row order: see decode.h.
struct State {
  float* rows;     // [rows, padded v dim], not divided yet
  float* largest;  // [rows], base 2
  float* sums;     // [rows, kStateLanes]
};

struct Part {
  int64_t seq;
  int64_t first_token, end_token;
  bool is_whole;  // the only part of its sequence: write the result
};

// Rows of one KV head of one sequence: tokens [first, first + count) of its query.
struct Tile {
  int64_t seq, kv_head, first, count;
};

// 8-bit rows to fp32, in plain order, rows of `out` padded to whole vectors; prefetches as dot.h does.
using Unpack = void (*)(const char* const* rows, int64_t offset, int64_t dim, int64_t count, float* out, int64_t stride,
                        const char* const* ahead_rows, int64_t ahead_offset);

struct Unpackers {
  Unpack e4m3, e5m2, int8;
};

struct AttendKernels {
  void (*decode)(const AttendArguments&, const Part&, const State&, char* scratch, Unpack);
  void (*combine)(const AttendArguments&, int64_t seq, const State* parts, int64_t num_parts);
  void (*prefill)(const AttendArguments&, const Tile&, char* scratch, Unpack);
};

struct Kernels {
  const char* name;
  AttendKernels float32, float16, bfloat16;
  Unpackers unpackers;

  LOOSELEAF_INLINE const AttendKernels& for_cache(Element element) const {
    return element == Element::kBFloat16 ? bfloat16 : element == Element::kFloat16 ? float16 : float32;
  }
  LOOSELEAF_INLINE Unpack unpack_of(Element element) const {
    return element == Element::kFloat8E4M3   ? unpackers.e4m3
           : element == Element::kFloat8E5M2 ? unpackers.e5m2
           : element == Element::kInt8       ? unpackers.int8
                                             : nullptr;
  }
};

// Bytes of scratch for one thread, 64-byte aligned.
LOOSELEAF_INLINE int64_t decode_scratch_bytes(const AttendArguments& a, int64_t num_rows) {
  const int64_t k = padded_dim(a.k.dim), v = padded_dim(a.v.dim);
  return 4 * (num_rows * (k + kStepTokens + 16) + kStepTokens * (k > v ? k : v));
}

LOOSELEAF_INLINE int64_t prefill_scratch_bytes(const AttendArguments& a, int64_t num_rows) {
  const int64_t k = padded_dim(a.k.dim), v = padded_dim(a.v.dim), rows = num_rows + 32;
  return 4 * (rows * (k + v + kTileKeys * 3 / 2 + kStateLanes + 1) + kTileKeys * (k + v) + kStepTokens * (k > v ? k : v) + 16);
}

LOOSELEAF_INLINE int64_t state_floats(const AttendArguments& a, int64_t num_rows) {
  return (num_rows * (padded_dim(a.v.dim) + 1 + kStateLanes) + 15) / 16 * 16;
}

LOOSELEAF_INLINE State state_at(const AttendArguments& a, int64_t num_rows, float* memory) {
  float* sums = memory + num_rows * padded_dim(a.v.dim);
  return {memory, sums + num_rows * kStateLanes, sums};
}

// Each in a file of csrc/cpu of its own, which a library contains or not (LOOSELEAF_PORTABLE, LOOSELEAF_AVX2, ...).
extern const Kernels kPortableKernels, kAvx2Kernels, kAvx512Kernels;
extern const AttendKernels kAvx512Bf16Kernels;  // of bf16 caches, in pairs; the rest is as in AVX-512
extern const AttendKernels kAmxKernels;         // its prefill alone
extern const Unpackers kVbmiUnpackers;

}  // namespace looseleaf
