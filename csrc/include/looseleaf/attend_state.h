// Scores, softmax states and results: what every attention kernel for GPUs does in the same way.
//
// A state of one row is (sums, largest, weight): with scores s in base 2, largest >= each s, weight = sum of 2^(s - largest)
// and sums = sum of 2^(s - largest) x value. A row without keys has weight 0 and largest -inf.
#pragma once

#include "looseleaf/attend_plan.h"

namespace looseleaf::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

LOOSELEAF_DEVICE float minus_infinity() { return -HUGE_VALF; }

// 2^(largest - reference) where `reference` is the largest of all parts.
LOOSELEAF_DEVICE float weight_of_part(float largest, float reference) {
  return largest == minus_infinity() ? 0.0f : exp2_fast(largest - reference);
}

// One row of an item.
struct Row {
  int64_t index;     // of q and out
  int64_t head;      // query head
  int64_t position;  // in the sequence
  int64_t first_key, end_key;
};

LOOSELEAF_DEVICE Row row_of(const AttendArguments& a, const Item& item, int64_t row) {
  const int64_t group = a.group(), of_sequence = item.first_row + row, token = of_sequence / group;
  Row result;
  result.index = a.first_row(item.seq) + token;
  result.head = item.kv_head * group + of_sequence % group;
  result.position = a.position(item.seq, token);
  result.first_key = a.first_key(result.position);
  result.end_key = a.end_key(item.seq, result.position);
  return result;
}

// The score of a key in base 2; `scale` is that of the call times that of the cache.
LOOSELEAF_DEVICE float score_of(const AttendArguments& a, const Row& row, int64_t token, float product, float scale) {
  float score = product * scale;
  if (a.softcap > 0.0f) score = a.softcap * tanhf(score / a.softcap);
  if (a.alibi_slopes != nullptr) {
    const int64_t distance = row.position - token;
    score -= a.alibi_slopes[row.head] * static_cast<float>(distance < 0 ? -distance : distance);
  }
  return token >= row.first_key && token < row.end_key ? score * kLog2E : minus_infinity();
}

// Element `d` of a row's result from its complete state, and with d = 0 its lse.
LOOSELEAF_DEVICE void write_result(const AttendArguments& a, const Row& row, int64_t d, float sum, float largest,
                                   float weight, float v_scale) {
  const bool sees_nothing = weight == 0.0f;
  if (!sees_nothing && a.sinks != nullptr) {
    const float sink = a.sinks[row.head] * kLog2E, reference = fmaxf(largest, sink);
    const float share = exp2_fast(largest - reference);
    sum *= share;
    weight = weight * share + exp2_fast(sink - reference);
    largest = reference;
  }
  store_element(a.element, a.out + row.index * a.out_row_stride + row.head * a.out_head_stride + d * bytes_of(a.element),
                sees_nothing ? 0.0f : sum / weight * v_scale);
  if (d == 0 && a.lse != nullptr)
    a.lse[row.index * a.lse_row_stride + row.head] = sees_nothing ? minus_infinity() : (largest + log2f(weight)) * kLn2;
}

// Place of a row of a part in the workspace: the block's first for the item that it begins in, its second for the other.
LOOSELEAF_DEVICE float* state_of(const AttendArguments& a, const Plan& plan, int64_t block, bool begins_inside, int64_t row) {
  return plan.states + ((2 * block + (begins_inside ? 0 : 1)) * plan.tile_rows + row) * (a.v.dim + 2);
}

// Element `d` of a row of a part: to its place, or to the result where the part is all.
LOOSELEAF_DEVICE void write_part(const AttendArguments& a, const Plan& plan, const Stretch& stretch, int64_t row, int64_t d,
                                 float sum, float largest, float weight) {
  if (stretch.is_whole()) {
    write_result(a, row_of(a, stretch.item, row), d, sum, largest, weight, a.v.scale_of(stretch.item.kv_head));
    return;
  }
  float* state = state_of(a, plan, blockIdx.x, stretch.first > 0, row);
  state[d] = sum;
  if (d == 0) {
    state[a.v.dim] = largest;
    state[a.v.dim + 1] = weight;
  }
}

}  // namespace looseleaf::cuda
