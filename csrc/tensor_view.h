// A tensor as the operators see it: pointer, sizes, strides, element. And the checks that name the argument.
//
// The stable ABI does not show whether a tensor requires grad. One function of libc10 does, and a handle is a pointer to a
// tensor, which is a pointer to what that function takes. A PyTorch without it cannot load the library, and Python says so.
//
// The Python wrappers make the same checks with finer error types, but only after an operator has refused: a good call
// is checked once, here. Everything is checked before anything is written.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "looseleaf/element.h"
#include "refusal.h"

namespace looseleaf {

extern "C" bool looseleaf_requires_grad(const void* tensor_impl) __asm__("_ZNK3c1010TensorImpl13requires_gradEv");

inline bool requires_grad(const torch::stable::Tensor& tensor) {
  return looseleaf_requires_grad(*reinterpret_cast<void* const*>(tensor.get()));
}

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline const char* name_of(ScalarType type) { return torch::headeronly::toString(type); }

inline bool is_float(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Half || type == ScalarType::BFloat16;
}

inline bool is_8bit(ScalarType type) {
  return type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2 || type == ScalarType::Char;
}

inline Element element_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return Element::kFloat32;
    case ScalarType::Half:
      return Element::kFloat16;
    case ScalarType::BFloat16:
      return Element::kBFloat16;
    case ScalarType::Float8_e4m3fn:
      return Element::kFloat8E4M3;
    case ScalarType::Float8_e5m2:
      return Element::kFloat8E5M2;
    default:
      return Element::kInt8;
  }
}

// Where a tensor may be. The operators' files are compiled for one device at a time.
enum class Where { kDevice, kHost, kAnywhere };

inline bool is_there(const Tensor& tensor, Where where) {
  if (where == Where::kAnywhere) return true;
#if defined(LOOSELEAF_ON_CUDA)
  if (where == Where::kDevice) return tensor.is_cuda();
#endif
  return tensor.is_cpu();
}

inline const char* name_of(Where where) {
#if defined(LOOSELEAF_ON_CUDA)
  if (where == Where::kDevice) return "cuda";
#endif
  static_cast<void>(where);
  return "cpu";
}

struct View {
  const char* name;
  const Tensor* tensor;
  ScalarType type;
  int64_t dim;
  const int64_t* sizes;
  const int64_t* strides;

  View(const char* name_, const Tensor& tensor_, Where where = Where::kDevice)
      : name(name_), tensor(&tensor_), type(tensor_.scalar_type()) {
    const auto shape = tensor_.sizes();
    dim = static_cast<int64_t>(shape.size());
    sizes = shape.data();
    strides = tensor_.strides().data();
    LOOSELEAF_CHECK(is_there(tensor_, where), name, " must be on ", name_of(where),
                    where == Where::kDevice ? " as the other tensors are" : "");
    LOOSELEAF_CHECK(!requires_grad(tensor_) || !aoti_torch_grad_mode_is_enabled(), name,
                    " requires grad, and no operator of looseleaf has a gradient; call it under torch.no_grad() or pass a "
                    "detached tensor");
  }

  const void* data() const { return tensor->const_data_ptr(); }
  void* mutable_data() const {
    for (int64_t d = 0; d < dim; ++d)
      LOOSELEAF_CHECK(sizes[d] <= 1 || strides[d] != 0, name, " is written and must not be expanded");
    return tensor->mutable_data_ptr();
  }
  int64_t bytes() const { return bytes_of(element_of(type)); }
  int64_t stride_bytes(int64_t d) const { return strides[d] * bytes(); }
  // Whether the memory between the first and the last element of both overlaps.
  bool overlaps(const View& other) const {
    const char *begin = static_cast<const char*>(data()), *other_begin = static_cast<const char*>(other.data());
    return begin < other_begin + other.span() && other_begin < begin + span();
  }
  int64_t span() const {
    int64_t elements = 1;
    for (int64_t d = 0; d < dim; ++d) {
      if (sizes[d] == 0) return 0;
      elements += (sizes[d] - 1) * strides[d];
    }
    return elements * bytes();
  }
  int64_t last() const { return dim == 0 ? 1 : sizes[dim - 1]; }

  std::string shape() const {
    std::string text = "[";
    for (int64_t d = 0; d < dim; ++d) text += (d == 0 ? "" : ", ") + std::to_string(sizes[d]);
    return text + "]";
  }
  // `wanted`: -1 for any size.
  void check_shape(std::initializer_list<int64_t> wanted, const char* meaning) const {
    bool is_right = dim == static_cast<int64_t>(wanted.size());
    if (is_right) {
      const int64_t* actual = sizes;
      for (const int64_t size : wanted) {
        is_right = is_right && (size < 0 || *actual == size);
        ++actual;
      }
    }
    LOOSELEAF_CHECK(is_right, name, " must have the shape ", meaning, ", was ", shape());
    LOOSELEAF_CHECK(last() <= 1 || strides[dim - 1] == 1, name, " must have a contiguous last dimension");
  }
  void check_type(bool is_right, const char* meaning) const {
    LOOSELEAF_CHECK(is_right, name, " must be ", meaning, ", was ", name_of(type));
  }
};

inline std::optional<View> view_of(const char* name, const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return std::nullopt;
  return View(name, *tensor);
}

// Checks a layer's caches [blocks, kv_heads, block_size, dim] of one another.
inline void check_caches(const View& k_cache, const View& v_cache) {
  k_cache.check_type(is_float(k_cache.type) || is_8bit(k_cache.type), "a float or an 8-bit dtype");
  k_cache.check_shape({-1, -1, -1, -1}, "[blocks, kv_heads, block_size, head_dim]");
  LOOSELEAF_CHECK(k_cache.sizes[1] > 0 && k_cache.sizes[2] > 0 && k_cache.sizes[3] > 0,
                  "k_cache must have heads, tokens and elements, was ", k_cache.shape());
  v_cache.check_type(v_cache.type == k_cache.type, "of the dtype of k_cache");
  v_cache.check_shape({k_cache.sizes[0], k_cache.sizes[1], k_cache.sizes[2], -1},
                      "[blocks, kv_heads, block_size, v_head_dim] of k_cache");
}

inline const float* check_scale(const char* name, const std::optional<Tensor>& scale, const View& k_cache, int64_t* step) {
  const bool is_needed = is_8bit(k_cache.type);
  LOOSELEAF_CHECK(scale.has_value() == is_needed, name,
                  is_needed ? " is needed with 8-bit caches, was None" : " is for 8-bit caches, must be None with others");
  *step = 0;
  if (!is_needed) return nullptr;
  const View view(name, *scale);
  view.check_type(view.type == ScalarType::Float, "Float");
  const int64_t count = view.dim == 0 ? 1 : view.sizes[0];
  LOOSELEAF_CHECK(view.dim <= 1 && (count == 1 || (count == k_cache.sizes[1] && view.strides[0] == 1)), name,
                  " must have 1 or kv_heads values side by side, was ", view.shape());
  *step = count == 1 ? 0 : 1;
  return static_cast<const float*>(view.data());
}

// Caches keep the dtype of the tensors outside, or an 8-bit one.
inline void check_cache_type(const View& k_cache, ScalarType outside, const char* owner) {
  LOOSELEAF_CHECK(is_8bit(k_cache.type) || k_cache.type == outside, "k_cache and v_cache must be ", name_of(outside), " as ",
                  owner, " is, or an 8-bit dtype with scales; they were ", name_of(k_cache.type));
}

}  // namespace looseleaf
