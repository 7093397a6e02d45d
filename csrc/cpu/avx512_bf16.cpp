// The kernels of bf16 caches with AVX512-BF16: products of pairs, in decode and in prefill.
#define LOOSELEAF_ISA avx512_bf16
#define LOOSELEAF_BY_PAIRS
// clang-format off
#include "looseleaf/unit.h"
#include "looseleaf/simd_avx512.h"
#include "looseleaf/attend_kernels.h"
#include "looseleaf/prefill_pairs.h"
// clang-format on

namespace looseleaf {
namespace avx512_bf16 {
namespace {

// 6 rows x 64 columns in registers: 24 accumulators.
struct Product {
  static constexpr int64_t kRows = 6, kColumns = 64;

  template <bool kAdd>
  void run(float* c, int64_t c_stride, const BFloat* a, int64_t a_stride, const int32_t* packed, int64_t depth) const {
    Vec sums[kRows][4];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 4; ++v) sums[r][v] = kAdd ? load(c + r * c_stride + v * 16) : broadcast(0.0f);
    for (int64_t d = 0; d < depth; d += 2) {
      __m512bh right[4];
      for (int v = 0; v < 4; ++v) right[v] = as_pairs(_mm512_loadu_si512(packed + d / 2 * kPairPanel + v * 16));
      for (int r = 0; r < kRows; ++r) {
        const __m512bh left = as_pairs(broadcast_pair(a + r * a_stride + d));
        for (int v = 0; v < 4; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left, right[v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 4; ++v) store(c + r * c_stride + v * 16, sums[r][v]);
  }
};

}  // namespace
}  // namespace avx512_bf16

extern const AttendKernels kAvx512Bf16Kernels = {avx512_bf16::decode<BFloat>, avx512_bf16::combine<BFloat>,
                                                 avx512_bf16::prefill_by_pairs<avx512_bf16::Product>};

}  // namespace looseleaf
