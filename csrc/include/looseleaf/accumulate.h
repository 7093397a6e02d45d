// Weighted sums of rows: the PV part of decode, and both products of prefill.
//
// A strip of R accumulator rows x V vectors stays in registers while it passes over all rows of the right-hand side:
// C[r][.] += sum over t of weights[r][t] x row t. In decode the rows are cached values at listed addresses, in prefill
// a packed tile with one stride. Accumulators are in unit order. A pass starts from 0 and is added to the accumulator at
// its end: sums of sums, whose rounding error does not grow with the context (measured at 30,000 tokens: 6e-7 for 3e-6).
// Checked by tests/kernels/test_grid.py.
#pragma once

namespace looseleaf::LOOSELEAF_ISA {
namespace {

template <class T, int R, int V, bool kIsPart>
inline void accumulate_strip(float* sums, int64_t sums_stride, const float* weights, int64_t weights_stride,
                             const char* const* rows, int64_t offset, int64_t count, int part, Ahead ahead) {
  using U = Unit<T>;
  constexpr int kUnits = V / U::kVectors;
  static_assert(V % U::kVectors == 0 && (!kIsPart || kUnits == 1));
  Vec c[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) c[r][v] = broadcast(0.0f);
  for (int64_t t = 0; t < count; ++t) {
    const T* row = reinterpret_cast<const T*>(rows[t] + offset);
    if (ahead.rows != nullptr)
      for (int u = 0; u < kUnits; ++u)
        prefetch(ahead.rows[t] + ahead.offset + u * static_cast<int64_t>(U::kSize * sizeof(T)));
    Vec value[V];
    for (int u = 0; u < kUnits; ++u) {
      if constexpr (kIsPart) {
        U::load_part(row, part, value);
      } else {
        U::load(row + u * U::kSize, value + u * U::kVectors);
      }
    }
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(weights[r * weights_stride + t]);
      for (int v = 0; v < V; ++v) c[r][v] = fma(weight, value[v], c[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* to = sums + r * sums_stride + v * kLanes;
      store(to, load(to) + c[r][v]);
    }
}

template <class T, int R>
inline void accumulate_rows(float* sums, int64_t sums_stride, const float* weights, int64_t weights_stride,
                            const char* const* rows, int64_t offset, int64_t dim, int64_t count, Ahead ahead) {
  using U = Unit<T>;
  int64_t d = 0;
  const auto strip = [&](auto vectors, auto is_part) __attribute__((always_inline)) {
    constexpr int V = decltype(vectors)::value;
    const int64_t at = d * static_cast<int64_t>(sizeof(T));
    accumulate_strip<T, R, V, decltype(is_part)::value>(sums + d, sums_stride, weights, weights_stride, rows, offset + at,
                                                        count, static_cast<int>(dim - d), {ahead.rows, ahead.offset + at});
    d += V * kLanes;
  };
  while (d + kStripVectors * kLanes <= dim) strip(std::integral_constant<int, kStripVectors>(), std::false_type());
  if constexpr (U::kVectors < kStripVectors)
    while (d + U::kSize <= dim) strip(std::integral_constant<int, U::kVectors>(), std::false_type());
  if (d < dim) strip(std::integral_constant<int, U::kVectors>(), std::true_type());
}

// sums[r][.] += weights[r][t] x cached row t, for all rows r and t < count.
template <class T>
void accumulate(float* sums, int64_t sums_stride, int64_t num_rows, const float* weights, int64_t weights_stride,
                const char* const* rows, int64_t offset, int64_t dim, int64_t count, Ahead ahead) {
  for (int64_t r = 0; r < num_rows; r += 4) {
    float* to = sums + r * sums_stride;
    const float* by = weights + r * weights_stride;
    switch (num_rows - r) {
      case 1:
        accumulate_rows<T, 1>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
        break;
      case 2:
        accumulate_rows<T, 2>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
        break;
      case 3:
        accumulate_rows<T, 3>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
        break;
      default:
        accumulate_rows<T, 4>(to, sums_stride, by, weights_stride, rows, offset, dim, count, ahead);
    }
    ahead.rows = nullptr;
  }
}

// C[R][V vectors] = or += A[R][depth] x B[depth][V vectors], each row of B at b + t * b_stride.
template <int R, int V, bool kAdd>
LOOSELEAF_NOINLINE void gemm_tile(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                      int64_t depth) {
  Vec sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = broadcast(0.0f);
  for (int64_t t = 0; t < depth; ++t) {
    Vec right[V];
    for (int v = 0; v < V; ++v) right[v] = load(b + t * b_stride + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec left = broadcast(a[r * a_stride + t]);
      for (int v = 0; v < V; ++v) sums[r][v] = fma(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* to = c + r * c_stride + v * kLanes;
      store(to, kAdd ? load(to) + sums[r][v] : sums[r][v]);
    }
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
