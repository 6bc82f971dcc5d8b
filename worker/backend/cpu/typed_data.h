// From LibTorch's tensors to this folder's kernels, beside worker/backend/tensor_data.h. Private to worker/backend/cpu.
#pragma once

#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include "worker/backend/cpu/rowwise.h"
#include "worker/backend/tensor_data.h"

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

// [rows, K, E] as [K, rows, E], a view.
inline at::Tensor HeadMajor(const at::Tensor& x) { return x.transpose(0, 1); }

}  // namespace stemma::worker
