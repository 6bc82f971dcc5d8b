#include "worker/ops/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

namespace stemma::worker {

at::Tensor LinearForward(const at::Tensor& x_TI, const at::Tensor& weight_OI, const at::Tensor& bias_O) {
  RECORD_USER_SCOPE("LinearForward");
  return bias_O.defined() ? at::addmm(bias_O, x_TI, weight_OI.t()) : at::mm(x_TI, weight_OI.t());
}

at::Tensor LinearForwardAdd(const at::Tensor& x_TI, const at::Tensor& weight_OI, const at::Tensor& residual_TO) {
  RECORD_USER_SCOPE("LinearForwardAdd");
  return at::addmm(residual_TO, x_TI, weight_OI.t());
}

at::Tensor LinearBackwardInput(const at::Tensor& dy_TO, const at::Tensor& weight_OI) {
  RECORD_USER_SCOPE("LinearBackwardInput");
  return at::mm(dy_TO, weight_OI);
}

void LinearBackwardWeight(const Backend& backend, const at::Tensor& dy_TO, const at::Tensor& x_TI,
                          const at::Tensor& dweight_OI, const at::Tensor& dbias_O) {
  RECORD_USER_SCOPE("LinearBackwardWeight");
  CHECK_EQ(dy_TO.size(0), x_TI.size(0));
  if (x_TI.size(0) == 0) return;
  if (dbias_O.defined()) dbias_O.add_(at::sum(dy_TO, {0}, /*keepdim=*/false, dbias_O.scalar_type()));
  backend.kernels.add_weight_gradient({.dy_TO = dy_TO, .x_TI = x_TI, .dweight_OI = dweight_OI});
}

}  // namespace stemma::worker
