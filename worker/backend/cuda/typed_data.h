// From LibTorch's tensors to the typed raw pointers of worker/backend/cuda/kernels. Private to worker/backend/cuda.
#pragma once

#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include <type_traits>

#include "worker/backend/cuda/kernels/head_rows.h"

namespace stemma::worker::cuda {

template <typename T>
constexpr at::ScalarType ScalarTypeOf() {
  if constexpr (std::is_same_v<T, Bf16>) {
    return at::kBFloat16;
  } else {
    return c10::CppTypeToScalarType<T>::value;
  }
}

// Calls f.template operator()<T>() with the kernels' type of a run dtype that they have: bf16 or fp32.
template <typename F>
decltype(auto) DispatchRunType(at::ScalarType dtype, const F& f) {
  if (dtype == at::kFloat) return f.template operator()<float>();
  CHECK(dtype == at::kBFloat16) << "no kernels for dtype " << c10::toString(dtype);
  return f.template operator()<Bf16>();
}

// Returns the data of a tensor of this type, any strides; null if undefined.
template <typename T>
T* StridedData(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  CHECK(tensor.scalar_type() == ScalarTypeOf<std::remove_const_t<T>>()) << c10::toString(tensor.scalar_type());
  return static_cast<T*>(tensor.data_ptr());
}

// Returns the data of a contiguous tensor of this type; null if undefined.
template <typename T>
T* Data(const at::Tensor& tensor) {
  if (tensor.defined()) CHECK(tensor.is_contiguous()) << "a contiguous tensor is needed";
  return StridedData<T>(tensor);
}

// [H, T, E] of any strides, last dim contiguous; [T, H, E] likewise.
template <typename T>
HeadRows<T> HeadMajorRows(const at::Tensor& x_HTE) {
  if (!x_HTE.defined()) return {nullptr, 0, 0};
  CHECK_EQ(x_HTE.dim(), 3);
  CHECK(x_HTE.stride(2) == 1 || x_HTE.size(2) <= 1) << "the last dim must be contiguous";
  return {StridedData<T>(x_HTE), x_HTE.stride(0), x_HTE.stride(1)};
}
template <typename T>
HeadRows<T> TokenMajorRows(const at::Tensor& x_THE) {
  return HeadMajorRows<T>(x_THE.defined() ? x_THE.transpose(0, 1) : x_THE);
}

}  // namespace stemma::worker::cuda
