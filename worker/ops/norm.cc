#include "worker/ops/norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>

#include "worker/ops/run_type.h"

namespace stemma::worker {

RmsNormResult RmsNormForward(const at::Tensor& x_TD, const at::Tensor& weight_D, double eps) {
  RECORD_USER_SCOPE("RmsNormForward");
  const int64_t rows = x_TD.size(0), width = x_TD.size(1);
  CHECK_EQ(weight_D.numel(), width);
  RmsNormResult result{at::empty_like(x_TD), at::empty({rows}, x_TD.options().dtype(AccType(x_TD.scalar_type())))};
  DispatchRunType(x_TD.scalar_type(), [&]<typename T>() {
    kernels::RmsNormForward<T>({.x_TD = Data<T>(x_TD),
                                .weight_D = Data<T>(weight_D),
                                .y_TD = Data<T>(result.y_TD),
                                .rstd_T = Data<kernels::Acc<T>>(result.rstd_T),
                                .rows = rows,
                                .width = width,
                                .eps = eps});
  });
  return result;
}

at::Tensor RmsNormBackward(const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& rstd_T,
                           const at::Tensor& weight_D, const at::Tensor& residual_TD, const at::Tensor& dweight_D) {
  RECORD_USER_SCOPE("RmsNormBackward");
  CHECK(dy_TD.sizes() == x_TD.sizes()) << dy_TD.sizes() << " and " << x_TD.sizes();
  CHECK_EQ(dweight_D.numel(), x_TD.size(1));
  CHECK_EQ(rstd_T.numel(), x_TD.size(0));
  if (residual_TD.defined()) CHECK(residual_TD.sizes() == x_TD.sizes());
  at::Tensor dx_TD = at::empty_like(x_TD);
  DispatchRunType(x_TD.scalar_type(), [&]<typename T>() {
    using A = kernels::Acc<T>;
    kernels::RmsNormBackward<T>({.dy_TD = Data<T>(dy_TD),
                                 .x_TD = Data<T>(x_TD),
                                 .rstd_T = Data<A>(rstd_T),
                                 .weight_D = Data<T>(weight_D),
                                 .residual_TD = Data<T>(residual_TD),
                                 .dx_TD = Data<T>(dx_TD),
                                 .dweight_D = Data<A>(dweight_D),
                                 .rows = x_TD.size(0),
                                 .width = x_TD.size(1)});
  });
  return dx_TD;
}

}  // namespace stemma::worker
