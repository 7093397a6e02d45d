// Rows of elements from and to fp32: in plain order for any element, in unit order for one that has units.
#pragma once

namespace looseleaf::LOOSELEAF_ISA {
namespace {

template <class T>
inline void read_units(const char* from, int64_t dim, float* out) {
  using U = Unit<T>;
  const T* p = reinterpret_cast<const T*>(from);
  Vec v[U::kVectors];
  for (int64_t d = 0; d < dim; d += U::kSize) {
    if (dim - d >= U::kSize) {
      U::load(p + d, v);
    } else {
      U::load_part(p + d, static_cast<int>(dim - d), v);
    }
    for (int i = 0; i < U::kVectors; ++i) store(out + d + i * kLanes, v[i]);
  }
}

template <class T>
inline void write_units(const float* from, int64_t dim, char* to) {
  using U = Unit<T>;
  T* p = reinterpret_cast<T*>(to);
  Vec v[U::kVectors];
  for (int64_t d = 0; d < dim; d += U::kSize) {
    for (int i = 0; i < U::kVectors; ++i) v[i] = load(from + d + i * kLanes);
    if (dim - d >= U::kSize) {
      U::store(p + d, v);
    } else {
      U::store_part(p + d, static_cast<int>(dim - d), v);
    }
  }
}

// Only bf16 has a unit order that is not the plain one; there it takes a detour through scalar conversions, which is
// for queries of 8-bit caches alone.
inline void read_floats(Element element, const char* from, int64_t dim, float* out) {
  if (element == Element::kFloat32) return read_units<float>(from, dim, out);
  if (element == Element::kFloat16) return read_units<Half>(from, dim, out);
  for (int64_t d = 0; d < dim; ++d) out[d] = to_float(reinterpret_cast<const BFloat*>(from)[d]);
}

inline void write_floats(Element element, const float* from, int64_t dim, char* to) {
  if (element == Element::kFloat32) return write_units<float>(from, dim, to);
  if (element == Element::kFloat16) return write_units<Half>(from, dim, to);
  for (int64_t d = 0; d < dim; ++d) reinterpret_cast<BFloat*>(to)[d] = to_bfloat(from[d]);
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
