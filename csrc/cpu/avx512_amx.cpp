// Prefill of bf16 caches with AMX: tiles of 16 x 16 sums, 32 products deep.
//
// 2 x 2 tiles of sums stay in tile registers while two tiles of either side pass: 4 products for 4 loads. Tile registers
// belong to a thread and are configured for each call, and released at its end. The kernel has to be asked for them once
// (csrc/cpu/dispatch.cpp).
#define LOOSELEAF_ISA avx512_amx
// clang-format off
#include "looseleaf/unit.h"
#include "looseleaf/simd_avx512.h"
#include "looseleaf/attend_kernels.h"
#include "looseleaf/prefill_pairs.h"
// clang-format on

namespace looseleaf {
namespace avx512_amx {
namespace {

// GCC's tile loads do not tell the compiler that they read memory: without this, stores to it may come too late.
inline void finish_stores() { asm volatile("" ::: "memory"); }

struct Product {
  static constexpr int64_t kRows = 32, kColumns = 32;

  Product() {
    alignas(64) struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    finish_stores();
    _tile_loadconfig(&configuration);
  }
  ~Product() { _tile_release(); }

  template <bool kAdd>
  void run(float* c, int64_t c_stride, const BFloat* a, int64_t a_stride, const int32_t* packed, int64_t depth) const {
    finish_stores();
    if constexpr (kAdd) {
      _tile_loadd(0, c, c_stride * 4);
      _tile_loadd(1, c + 16, c_stride * 4);
      _tile_loadd(2, c + 16 * c_stride, c_stride * 4);
      _tile_loadd(3, c + 16 * c_stride + 16, c_stride * 4);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t d = 0; d < depth; d += 32) {
      const int32_t* right = packed + d / 2 * kPairPanel;
      _tile_loadd(4, a + d, a_stride * 2);
      _tile_loadd(6, right, kPairPanel * 4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, right + 16, kPairPanel * 4);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + 16 * a_stride + d, a_stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_stride * 4);
    _tile_stored(1, c + 16, c_stride * 4);
    _tile_stored(2, c + 16 * c_stride, c_stride * 4);
    _tile_stored(3, c + 16 * c_stride + 16, c_stride * 4);
  }
};

}  // namespace
}  // namespace avx512_amx

extern const AttendKernels kAmxKernels = {nullptr, nullptr, avx512_amx::prefill_by_pairs<avx512_amx::Product>};

}  // namespace looseleaf
