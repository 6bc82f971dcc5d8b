// SwiGLU on the fused gate/up product: y = silu(gate) · up, gate = x[:, :F], up = x[:, F:].
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/backend/backend.h"

namespace stemma::worker {

at::Tensor SwigluForward(const Backend& backend, const at::Tensor& gate_up_TJ);  // [T, 2F] -> [T, F]

// Returns d(gate_up) [T, 2F].
at::Tensor SwigluBackward(const Backend& backend, const at::Tensor& dy_TF, const at::Tensor& gate_up_TJ);

}  // namespace stemma::worker
