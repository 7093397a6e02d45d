// The dimensions of a block, for whoever copies it: those that lie dense in both tensors are merged into one run.
#pragma once

#include "looseleaf/moves_arguments.h"

namespace looseleaf {

inline BlockShape block_shape(int64_t num_dims, const int64_t* sizes, const int64_t* source_strides,
                              const int64_t* target_strides, int64_t element_bytes) {
  BlockShape shape = {};
  shape.run_bytes = element_bytes;
  int64_t d = num_dims - 1;
  while (d >= 0 && (sizes[d] == 1 || (source_strides[d] * element_bytes == shape.run_bytes &&
                                      target_strides[d] * element_bytes == shape.run_bytes)))
    shape.run_bytes *= sizes[d--];
  for (int64_t i = 0; i <= d; ++i) {
    shape.sizes[shape.num_dims] = sizes[i];
    shape.source_strides[shape.num_dims] = source_strides[i] * element_bytes;
    shape.target_strides[shape.num_dims++] = target_strides[i] * element_bytes;
  }
  return shape;
}

}  // namespace looseleaf
