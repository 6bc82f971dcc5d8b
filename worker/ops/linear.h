// y = x Wᵀ (+ bias) (+ residual), and its gradients. Weight gradients accumulate in place: in fp32 (fp64 in fp64),
// inside the GEMM where the backend can. Called by worker/model and worker/ops.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/backend/backend.h"

namespace stemma::worker {

// Returns x Wᵀ + bias; the bias may be undefined.
at::Tensor LinearForward(const at::Tensor& x_TI, const at::Tensor& weight_OI, const at::Tensor& bias_O);
// Returns residual_TO + x Wᵀ.
at::Tensor LinearForwardAdd(const at::Tensor& x_TI, const at::Tensor& weight_OI, const at::Tensor& residual_TO);

at::Tensor LinearBackwardInput(const at::Tensor& dy_TO, const at::Tensor& weight_OI);

// dweight_OI += dyᵀ x; dbias_O += column sums of dy, where defined.
void LinearBackwardWeight(const Backend& backend, const at::Tensor& dy_TO, const at::Tensor& x_TI,
                          const at::Tensor& dweight_OI, const at::Tensor& dbias_O);

}  // namespace stemma::worker
