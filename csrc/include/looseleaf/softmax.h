// Scores to weights, online: one row of scores at a time, in powers of two.
//
// A row keeps its reference `largest`, its sum of weights (one partial sum for each lane) and its accumulator. Scores
// arrive as q . k; the factor that makes them logits in base 2 is applied here, then softcap, ALiBi and the mask.
// The reference moves only where a score exceeds it by more than kSlack (lazy rescale), so that in the steady state no
// accumulator is touched; weights stay below 2^kSlack. References start at kLowest, never at -inf, so that no
// difference is NaN: a row without a key ends with a sum of 0.
// Checked by tests/kernels/test_grid.py.
#pragma once

#include "looseleaf/attend_arguments.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

constexpr float kLog2E = 1.442695040888963407f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLowest = -1e30f;  // of references
constexpr float kMasked = -3e38f;  // of scores
constexpr float kSlack = 8.0f;

struct RowOptions {
  float factor;  // of q . k: to logits in base 2, or to the argument of tanh
  float cap;     // softcap in base 2; 0: none
  float slope;   // ALiBi in base 2; 0: none
};

inline RowOptions row_options(const AttendArguments& a, int64_t q_head, int64_t kv_head) {
  const float scale = a.scale * a.k.scale_of(kv_head);
  const bool is_capped = a.softcap > 0.0f;
  return {is_capped ? scale / a.softcap : scale * kLog2E, is_capped ? a.softcap * kLog2E : 0.0f,
          a.alibi_slopes == nullptr ? 0.0f : a.alibi_slopes[q_head] * kLog2E};
}

inline void scale_row(float* row, int64_t dim, float factor) {
  for (int64_t d = 0; d < dim; d += kLanes) store(row + d, load(row + d) * broadcast(factor));
}

// Turns scores[0, count) of keys first_key, first_key + 1, ... into weights; count is rounded up to whole vectors, with
// weights of 0 there. Keys outside [begin, end) (relative to first_key) are hidden. `row` is the accumulator.
LOOSELEAF_NOINLINE void weigh_row(float* scores, int64_t count, int64_t begin, int64_t end, float distance,
                                  const RowOptions& options, float* largest_so_far, float* lane_sums, float* row,
                                  int64_t row_floats) {
  const Vec factor = broadcast(options.factor);
  float reference = *largest_so_far;
  Vec sums = load(lane_sums);
  const bool is_plain = options.cap == 0.0f && options.slope == 0.0f;
  const auto logits = [&](int64_t t) __attribute__((always_inline)) {
    Vec x = load(scores + t) * factor;
    if (!is_plain) {
      if (options.cap != 0.0f) x = tanh(x) * broadcast(options.cap);
      if (options.slope != 0.0f) {
        const Vec behind = absolute(broadcast(distance - static_cast<float>(t)) - counting());
        x = x - broadcast(options.slope) * behind;
      }
    }
    if (begin > t || end < t + kLanes) {
      const Vec lane = counting() + broadcast(static_cast<float>(t));
      const Mask is_seen = both(less(broadcast(static_cast<float>(begin) - 0.5f), lane),
                                less(lane, broadcast(static_cast<float>(end) - 0.5f)));
      x = select(is_seen, x, broadcast(kMasked));
    }
    return x;
  };
  const Vec limit = broadcast(reference + kSlack);
  Vec top = broadcast(kMasked);
  for (int64_t t = 0; t < count; t += kLanes) {
    const Vec x = logits(t);
    store(scores + t, x);
    top = maximum(top, x);
  }
  if (any(less(limit, top))) {
    const float now = largest(top);
    if (reference != kLowest) {  // otherwise nothing was added up yet
      alignas(64) float scaled[kLanes];
      store(scaled, exp2(broadcast(reference - now)));
      sums = sums * broadcast(scaled[0]);
      scale_row(row, row_floats, scaled[0]);
    }
    reference = now;
    *largest_so_far = now;
  }
  const Vec base = broadcast(reference);
  for (int64_t t = 0; t < count; t += kLanes) {
    const Vec weight = exp2(load(scores + t) - base);
    store(scores + t, weight);
    sums = sums + weight;
  }
  store(lane_sums, sums);
}

// What turns a row's accumulator into its result: x / divisor x factor. Divisor 0: the row saw no key.
struct Normalized {
  float divisor, factor, lse;
};

inline Normalized normalize(float reference, float sum, const float* sink) {
  if (!(sum != 0.0f)) return {0.0f, 0.0f, -INFINITY};
  float ratio = 1.0f;
  if (sink != nullptr) {  // one more weight in the sum, without a value
    const float logit = *sink * kLog2E;
    if (logit > reference) {
      ratio = ::exp2f(reference - logit);
      sum = sum * ratio + 1.0f;
      reference = logit;
    } else {
      sum += ::exp2f(logit - reference);
    }
  }
  return {sum, ratio, (reference + ::log2f(sum)) * kLn2};
}

// row = row / divisor x factor, rounded as a division is: a mean of whole numbers stays whole.
inline void divide_row(float* row, int64_t dim, float divisor, float factor) {
  const Vec inverse = broadcast(1.0f / divisor), negative = broadcast(-divisor);
  for (int64_t d = 0; d < dim; d += kLanes) {
    const Vec x = load(row + d);
    const Vec near = x * inverse;
    const Vec exact = fma(fma(near, negative, x), inverse, near);
    store(row + d, select(less(absolute(near), broadcast(INFINITY)), exact, near) * broadcast(factor));
  }
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
