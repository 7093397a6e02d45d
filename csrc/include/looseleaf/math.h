// 2^x and tanh on vectors. Polynomials are the minimax ones of their degree (relative error in exact arithmetic:
// 2e-9 for 2^x on [-0.5, 0.5], 6e-9 for tanh below 0.65); rounding in fp32 is what remains.
// Checked by tests/kernels/test_grid.py through the attention that uses them.
#pragma once

namespace looseleaf::LOOSELEAF_ISA {
namespace {

// 2^x for x <= 126. Below -126 it is 0 or so small that no sum of weights can see it; NaN stays NaN.
inline Vec exp2(Vec x) {
  x = maximum(broadcast(-127.0f), x);
  const Vec whole = nearest(x);
  const Vec f = x - whole;
  Vec p = broadcast(0.0001534581242594868f);
  p = fma(p, f, broadcast(0.0013399930903688073f));
  p = fma(p, f, broadcast(0.009618489071726799f));
  p = fma(p, f, broadcast(0.05550328642129898f));
  p = fma(p, f, broadcast(0.24022646248340607f));
  p = fma(p, f, broadcast(0.6931471824645996f));
  p = fma(p, f, broadcast(1.0f));
  return times_power_of_two(p, whole);
}

// Near 0 the quotient of exponentials would cancel, so a polynomial takes over there.
inline Vec tanh(Vec x) {
  const Vec magnitude = absolute(x);
  const Vec square = x * x;
  Vec p = broadcast(-0.005468268413096666f);
  p = fma(p, square, broadcast(0.02041519433259964f));
  p = fma(p, square, broadcast(-0.05366528034210205f));
  p = fma(p, square, broadcast(0.1333041489124298f));
  p = fma(p, square, broadcast(-0.3333323001861572f));
  const Vec near = fma(p * square, x, x);
  const Vec inverse = exp2(magnitude * broadcast(-2.885390081777926815f));  // e^(-2|x|)
  const Vec far = copy_sign((broadcast(1.0f) - inverse) / (broadcast(1.0f) + inverse), x);
  return select(less(magnitude, broadcast(0.65f)), near, far);
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
