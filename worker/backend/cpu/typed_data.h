// From LibTorch's tensors to the typed raw pointers of this folder's kernels. Private to worker/backend/cpu.
#pragma once

#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include "worker/backend/cpu/rowwise.h"

namespace stemma::worker {

// Calls f.template operator()<T>() with the kernels' type of a run dtype.
template <typename F>
decltype(auto) DispatchRunType(at::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kFloat:
      return f.template operator()<float>();
    case at::kDouble:
      return f.template operator()<double>();
    default:
      CHECK(dtype == at::kBFloat16) << "no kernels for dtype " << c10::toString(dtype);
      return f.template operator()<kernels::Bf16>();
  }
}

template <typename T>
constexpr at::ScalarType ScalarTypeOf() {
  if constexpr (std::is_same_v<T, float>) {
    return at::kFloat;
  } else if constexpr (std::is_same_v<T, double>) {
    return at::kDouble;
  } else {
    return at::kBFloat16;
  }
}

// [rows, K, E] as [K, rows, E], a view.
inline at::Tensor HeadMajor(const at::Tensor& x) { return x.transpose(0, 1); }

// Data of a tensor of this type, any strides; null if undefined.
template <typename T>
T* StridedData(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  CHECK(tensor.scalar_type() == ScalarTypeOf<T>()) << "dtype " << c10::toString(tensor.scalar_type());
  return static_cast<T*>(tensor.data_ptr());
}

// Data of a contiguous tensor of this type; null if undefined.
template <typename T>
T* Data(const at::Tensor& tensor) {
  if (tensor.defined()) CHECK(tensor.is_contiguous()) << "a contiguous tensor is needed";
  return StridedData<T>(tensor);
}

}  // namespace stemma::worker
