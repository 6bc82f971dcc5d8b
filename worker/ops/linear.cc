#include "worker/ops/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "worker/ops/run_type.h"

namespace stemma::worker {

namespace {

// Rows of bf16 operands that are upcast at a time.
constexpr int64_t kUpcastRows = 512;

}  // namespace

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

void LinearBackwardWeight(const at::Tensor& dy_TO, const at::Tensor& x_TI, const at::Tensor& dweight_OI,
                          const at::Tensor& dbias_O) {
  RECORD_USER_SCOPE("LinearBackwardWeight");
  const int64_t rows = x_TI.size(0);
  CHECK_EQ(dy_TO.size(0), rows);
  if (rows == 0) return;
  if (dbias_O.defined()) dbias_O.add_(at::sum(dy_TO, {0}, /*keepdim=*/false, dbias_O.scalar_type()));
  if (dy_TO.scalar_type() == dweight_OI.scalar_type()) {
    dweight_OI.addmm_(dy_TO.t(), x_TI);
    return;
  }
  for (int64_t begin = 0; begin < rows; begin += kUpcastRows) {
    const int64_t count = std::min(kUpcastRows, rows - begin);
    const at::Tensor dy = dy_TO.narrow(0, begin, count).to(dweight_OI.scalar_type());
    const at::Tensor x = x_TI.narrow(0, begin, count).to(dweight_OI.scalar_type());
    dweight_OI.addmm_(dy.t(), x);
  }
}

at::Tensor EmbeddingForward(const at::Tensor& tokens_T, const at::Tensor& weight_VD) {
  RECORD_USER_SCOPE("EmbeddingForward");
  return at::index_select(weight_VD, 0, tokens_T);
}

void EmbeddingBackward(const at::Tensor& tokens_T, const at::Tensor& dx_TD, const at::Tensor& dweight_VD) {
  RECORD_USER_SCOPE("EmbeddingBackward");
  CHECK_EQ(tokens_T.numel(), dx_TD.size(0));
  CHECK_EQ(dx_TD.size(1), dweight_VD.size(1));
  CHECK(tokens_T.scalar_type() == at::kLong && tokens_T.is_contiguous());
  DispatchRunType(dx_TD.scalar_type(), [&]<typename T>() {
    kernels::EmbeddingBackward<T>({.tokens_T = tokens_T.const_data_ptr<int64_t>(),
                                   .dx_TD = Data<T>(dx_TD),
                                   .dweight_VD = Data<kernels::Acc<T>>(dweight_VD),
                                   .rows = dx_TD.size(0),
                                   .width = dx_TD.size(1)});
  });
}

}  // namespace stemma::worker
