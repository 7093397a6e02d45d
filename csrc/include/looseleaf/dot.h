// Dot products of a few query rows with a few cached rows: the QK part of decode.
//
// One call of `dot_tile` makes R x N products (16 of them in AVX-512) and keeps them all in registers: for each unit of
// the head dim, R loads of q and N of the cache feed R x N fused multiply-adds; one transposed sum ends it.
// Cached rows come as a list of addresses, so blocks, strides and layouts cost nothing here. While it works it asks for
// the same part of rows that are needed later (`Ahead`): one prefetch for each line read.
// Checked by tests/kernels/test_grid.py.
#pragma once

namespace looseleaf::LOOSELEAF_ISA {
namespace {

// Rows that will be read a set distance from now; rows == null: nothing to fetch.
struct Ahead {
  const char* const* rows;
  int64_t offset;  // bytes from the address in `rows`
};

// scores[r * stride + t] = q row r . cached row t. q: unit order, q_stride floats between rows.
template <class T, int R, int N>
inline void dot_tile(const float* q, int64_t q_stride, const char* const* rows, int64_t offset, int64_t dim, float* scores,
                     int64_t stride, Ahead ahead) {
  using U = Unit<T>;
  constexpr int kSums = (R * N + kLanes - 1) / kLanes * kLanes;
  Vec sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = broadcast(0.0f);
  const int64_t whole = dim / U::kSize * U::kSize;
  const char* row[N];
  for (int t = 0; t < N; ++t) row[t] = rows[t] + offset;
  int64_t d = 0;
  for (; d < whole; d += U::kSize) {
    if (ahead.rows != nullptr)
      for (int t = 0; t < N; ++t) prefetch(ahead.rows[t] + ahead.offset + d * static_cast<int64_t>(sizeof(T)));
    Vec query[R][U::kVectors];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < U::kVectors; ++v) query[r][v] = load(q + r * q_stride + d + v * kLanes);
    for (int t = 0; t < N; ++t) {
      Vec key[U::kVectors];
      U::load(reinterpret_cast<const T*>(row[t]) + d, key);
      for (int v = 0; v < U::kVectors; ++v)
        for (int r = 0; r < R; ++r) sums[r * N + t] = fma(query[r][v], key[v], sums[r * N + t]);
    }
  }
  if (d < dim) {  // q is padded with 0, the cache is not
    for (int t = 0; t < N; ++t) {
      Vec key[U::kVectors];
      U::load_part(reinterpret_cast<const T*>(row[t]) + d, static_cast<int>(dim - d), key);
      for (int v = 0; v < U::kVectors; ++v)
        for (int r = 0; r < R; ++r)
          sums[r * N + t] = fma(load(q + r * q_stride + d + v * kLanes), key[v], sums[r * N + t]);
    }
  }
  alignas(64) float totals[kSums];
  for (int i = 0; i < kSums; i += kLanes) sum_each(sums + i, totals + i);
  for (int r = 0; r < R; ++r) std::memcpy(scores + r * stride, totals + r * N, N * sizeof(float));
}

template <class T, int R>
inline void dot_rows(const float* q, int64_t q_stride, const char* const* rows, int64_t offset, int64_t dim, int64_t count,
                     float* scores, int64_t stride, Ahead ahead) {
  constexpr int N = R == 1 ? 8 : kMaxDots / R;
  for (int64_t t = 0; t < count; t += N) {
    dot_tile<T, R, N>(q, q_stride, rows + t, offset, dim, scores + t, stride,
                      {ahead.rows == nullptr ? nullptr : ahead.rows + t, ahead.offset});
  }
}

// All rows of q against `count` cached rows. `rows` and `scores` reach up to the next multiple of 8 past `count`: the
// addresses there repeat a good one, the scores there are of no use.
template <class T>
void dots(const float* q, int64_t q_stride, int64_t num_rows, const char* const* rows, int64_t offset, int64_t dim,
          int64_t count, float* scores, int64_t stride, Ahead ahead) {
  for (int64_t r = 0; r < num_rows; r += 4) {
    const float* from = q + r * q_stride;
    float* to = scores + r * stride;
    switch (num_rows - r) {
      case 1:
        dot_rows<T, 1>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
        break;
      case 2:
        dot_rows<T, 2>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
        break;
      case 3:
        dot_rows<T, 3>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
        break;
      default:
        dot_rows<T, 4>(from, q_stride, rows, offset, dim, count, to, stride, ahead);
    }
    ahead.rows = nullptr;  // later rows find everything in the cache
  }
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
