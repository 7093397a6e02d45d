// 8-bit cached rows to fp32, for any instruction set: a table of all 256 values.
//
// Every 8-bit value is exact in fp32; the scale is applied to scores and to the result, never here. The sets with
// shuffles of their own have faster ones (unpack_avx512.h).
// Checked by tests/kernels/test_grid.py and by tests/kernels/test_unpack.py over all 256 bytes.
#pragma once

#include "looseleaf/element.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

template <Element kElement>
struct Table {
  float values[256];
  Table() {
    for (int byte = 0; byte < 256; ++byte) values[byte] = to_float_8bit(kElement, static_cast<uint8_t>(byte));
  }
};

template <Element kElement>
void unpack_by_table(const char* const* rows, int64_t offset, int64_t dim, int64_t count, float* out, int64_t stride,
                     const char* const* ahead_rows, int64_t ahead_offset) {
  static const Table<kElement> table;
  for (int64_t t = 0; t < count; ++t, out += stride) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(rows[t] + offset);
    if (ahead_rows != nullptr)
      for (int64_t d = 0; d < dim; d += 64) prefetch(ahead_rows[t] + ahead_offset + d);
    for (int64_t d = 0; d < dim; ++d) out[d] = table.values[from[d]];
    for (int64_t d = dim; d < (dim + kLanes - 1) / kLanes * kLanes; ++d) out[d] = 0.0f;
  }
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
