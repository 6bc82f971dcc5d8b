#include "worker/ops/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

namespace stemma::worker {

at::Tensor SwigluForward(const Backend& backend, const at::Tensor& gate_up_TJ) {
  RECORD_USER_SCOPE("SwigluForward");
  const int64_t rows = gate_up_TJ.size(0), width = gate_up_TJ.size(1) / 2;
  CHECK_EQ(gate_up_TJ.size(1), 2 * width);
  at::Tensor y_TF = at::empty({rows, width}, gate_up_TJ.options());
  backend.kernels.swiglu_forward({.gate_up_TJ = gate_up_TJ, .y_TF = y_TF});
  return y_TF;
}

at::Tensor SwigluBackward(const Backend& backend, const at::Tensor& dy_TF, const at::Tensor& gate_up_TJ) {
  RECORD_USER_SCOPE("SwigluBackward");
  CHECK_EQ(dy_TF.size(0), gate_up_TJ.size(0));
  CHECK_EQ(2 * dy_TF.size(1), gate_up_TJ.size(1));
  at::Tensor dgate_up_TJ = at::empty_like(gate_up_TJ);
  backend.kernels.swiglu_backward({.dy_TF = dy_TF, .gate_up_TJ = gate_up_TJ, .dgate_up_TJ = dgate_up_TJ});
  return dgate_up_TJ;
}

}  // namespace stemma::worker
