// RmsNorm over the last dim: y = x · rstd · weight, rstd = (mean(x²) + eps)^-1/2, statistics in fp32 (fp64 in fp64).
// Called by worker/model.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/backend/backend.h"

namespace stemma::worker {

struct RmsNormResult {
  at::Tensor y_TD;
  at::Tensor rstd_T;  // fp32 or fp64
};
RmsNormResult RmsNormForward(const Backend& backend, const at::Tensor& x_TD, const at::Tensor& weight_D, double eps);

// What the backward reads of the forward.
struct RmsNormSaved {
  const at::Tensor &x_TD, &rstd_T, &weight_D;
};

// Returns residual_TD + dx_TD (the gradient that passes beside the norm is added in the same pass; residual may be
// undefined); adds to dweight_D (fp32; fp64 in fp64).
at::Tensor RmsNormBackward(const Backend& backend, const RmsNormSaved& saved, const at::Tensor& dy_TD,
                           const at::Tensor& residual_TD, const at::Tensor& dweight_D);

}  // namespace stemma::worker
