#include "worker/ops/norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include "worker/backend/accumulate_type.h"

namespace stemma::worker {

RmsNormResult RmsNormForward(const Backend& backend, const at::Tensor& x_TD, const at::Tensor& weight_D, double eps) {
  RECORD_USER_SCOPE("RmsNormForward");
  CHECK_EQ(weight_D.numel(), x_TD.size(1));
  const RmsNormResult result{at::empty_like(x_TD),
                             at::empty({x_TD.size(0)}, x_TD.options().dtype(AccType(x_TD.scalar_type())))};
  backend.kernels.rms_norm_forward(
      {.x_TD = x_TD, .weight_D = weight_D, .y_TD = result.y_TD, .rstd_T = result.rstd_T, .eps = eps});
  return result;
}

at::Tensor RmsNormBackward(const Backend& backend, const RmsNormSaved& saved, const at::Tensor& dy_TD,
                           const at::Tensor& residual_TD, const at::Tensor& dweight_D) {
  RECORD_USER_SCOPE("RmsNormBackward");
  const at::Tensor& x_TD = saved.x_TD;
  CHECK(dy_TD.sizes() == x_TD.sizes()) << dy_TD.sizes() << " and " << x_TD.sizes();
  CHECK_EQ(dweight_D.numel(), x_TD.size(1));
  CHECK_EQ(saved.rstd_T.numel(), x_TD.size(0));
  if (residual_TD.defined()) CHECK(residual_TD.sizes() == x_TD.sizes());
  at::Tensor dx_TD = at::empty_like(x_TD);
  backend.kernels.rms_norm_backward({.dy_TD = dy_TD,
                                     .x_TD = x_TD,
                                     .rstd_T = saved.rstd_T,
                                     .weight_D = saved.weight_D,
                                     .residual_TD = residual_TD,
                                     .dx_TD = dx_TD,
                                     .dweight_D = dweight_D});
  return dx_TD;
}

}  // namespace stemma::worker
