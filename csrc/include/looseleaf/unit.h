// The primary template of units, and parts of units by way of a padded buffer. See simd_portable.h.
#pragma once

#include "looseleaf/element.h"

namespace looseleaf::LOOSELEAF_ISA {
namespace {

template <class T>
struct Unit;

template <class T, class Vec>
void load_padded(const T* p, int count, Vec* out) {
  T buffer[Unit<T>::kSize] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(T));
  Unit<T>::load(buffer, out);
}

template <class T, class Vec>
void store_padded(T* p, int count, const Vec* in) {
  T buffer[Unit<T>::kSize];
  Unit<T>::store(buffer, in);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace
}  // namespace looseleaf::LOOSELEAF_ISA
