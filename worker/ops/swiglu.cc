#include "worker/ops/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>

#include "worker/ops/run_type.h"

namespace stemma::worker {

at::Tensor SwigluForward(const at::Tensor& gate_up_TJ) {
  RECORD_USER_SCOPE("SwigluForward");
  const int64_t rows = gate_up_TJ.size(0), width = gate_up_TJ.size(1) / 2;
  CHECK_EQ(gate_up_TJ.size(1), 2 * width);
  at::Tensor y_TF = at::empty({rows, width}, gate_up_TJ.options());
  DispatchRunType(gate_up_TJ.scalar_type(), [&]<typename T>() {
    kernels::SwigluForward<T>({.gate_up_TJ = Data<T>(gate_up_TJ), .y_TF = Data<T>(y_TF), .rows = rows, .width = width});
  });
  return y_TF;
}

at::Tensor SwigluBackward(const at::Tensor& dy_TF, const at::Tensor& gate_up_TJ) {
  RECORD_USER_SCOPE("SwigluBackward");
  CHECK_EQ(dy_TF.size(0), gate_up_TJ.size(0));
  CHECK_EQ(2 * dy_TF.size(1), gate_up_TJ.size(1));
  at::Tensor dgate_up_TJ = at::empty_like(gate_up_TJ);
  DispatchRunType(gate_up_TJ.scalar_type(), [&]<typename T>() {
    kernels::SwigluBackward<T>({.dy_TF = Data<T>(dy_TF),
                                .gate_up_TJ = Data<T>(gate_up_TJ),
                                .dgate_up_TJ = Data<T>(dgate_up_TJ),
                                .rows = dy_TF.size(0),
                                .width = dy_TF.size(1)});
  });
  return dgate_up_TJ;
}

}  // namespace stemma::worker
