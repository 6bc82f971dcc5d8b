// From LibTorch's tensors to worker/backend/cuda/kernels, beside worker/backend/tensor_data.h. Private to
// worker/backend/cuda.
#pragma once

#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include "worker/backend/cuda/kernels/attention_head_rows.h"
#include "worker/backend/tensor_data.h"

namespace stemma::worker::cuda {

// Calls f.template operator()<T>() with the kernels' type of a run dtype that they have: bf16 or fp32.
template <typename F>
decltype(auto) DispatchRunType(at::ScalarType dtype, const F& f) {
  if (dtype == at::kFloat) return f.template operator()<float>();
  CHECK(dtype == at::kBFloat16) << "no kernels for dtype " << c10::toString(dtype);
  return f.template operator()<Bf16>();
}

// [H, T, E] of any strides, last dim contiguous; [T, H, E] likewise.
template <typename T>
StridedHeads<T> HeadMajorRows(const at::Tensor& x_HTE) {
  if (!x_HTE.defined()) return {nullptr, 0, 0};
  CHECK_EQ(x_HTE.dim(), 3);
  CHECK(x_HTE.stride(2) == 1 || x_HTE.size(2) <= 1) << "the last dim must be contiguous";
  return {StridedData<T>(x_HTE), x_HTE.stride(0), x_HTE.stride(1)};
}
template <typename T>
StridedHeads<T> TokenMajorRows(const at::Tensor& x_THE) {
  return HeadMajorRows<T>(x_THE.defined() ? x_THE.transpose(0, 1) : x_THE);
}

}  // namespace stemma::worker::cuda
