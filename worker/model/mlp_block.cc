#include "worker/model/mlp_block.h"

#include <utility>

#include "worker/ops/linear.h"
#include "worker/ops/norm.h"
#include "worker/ops/swiglu.h"

namespace stemma::worker {

MlpBlock::MlpBlock(const LayerContext& context, int64_t layer, int64_t rows)
    : backend_(*context.backend),
      tp_(*context.tp),
      rows_(rows),
      rms_norm_eps_(context.weights->config.rms_norm_eps),
      p_(*context.weights, layer) {}

void MlpBlock::Norm(MlpTape& tape) const {
  auto norm = RmsNormForward(backend_, tape.x_TD, p_.norm2().weight, rms_norm_eps_);
  tape.rstd_T = norm.rstd_T;
  tape.h_TD = tp_.GatherRows(norm.y_TD, rows_);
}

void MlpBlock::GateUp(MlpTape& tape) const { tape.gate_up_AJ = LinearForward(tape.h_TD, p_.gate_up().weight, {}); }

at::Tensor MlpBlock::Forward(at::Tensor x_TD, v1::TapePolicy policy, MlpTape& tape) const {
  tape.x_TD = std::move(x_TD);
  Norm(tape);
  GateUp(tape);
  DropUnlessKept(tape, TapeTensor::kNormed, policy);
  tape.act_AF = SwigluForward(backend_, tape.gate_up_AJ);
  DropUnlessKept(tape, TapeTensor::kGateUp, policy);
  at::Tensor y_TD = tp_.ForwardSum(tape.act_AF, p_.down().weight, tape.x_TD);
  for (const TapeTensor name : {TapeTensor::kActivation, TapeTensor::kResidual, TapeTensor::kStatistic}) {
    DropUnlessKept(tape, name, policy);
  }
  return y_TD;
}

void MlpBlock::Restore(MlpTape& tape) const {
  if (!tape.h_TD.defined()) Norm(tape);
  if (!tape.gate_up_AJ.defined()) GateUp(tape);
  if (!tape.act_AF.defined()) tape.act_AF = SwigluForward(backend_, tape.gate_up_AJ);
}

at::Tensor MlpBlock::Backward(at::Tensor dy_TD, MlpTape tape) const {
  Restore(tape);
  at::Tensor dsum_TD = tp_.GatherRows(dy_TD, rows_);
  LinearBackwardWeight(backend_, dsum_TD, tape.act_AF, p_.down().grad, {});
  tape.act_AF.reset();
  at::Tensor dact_TF = LinearBackwardInput(dsum_TD, p_.down().weight);
  dsum_TD.reset();
  at::Tensor dgate_up_TJ = SwigluBackward(backend_, dact_TF, tape.gate_up_AJ);
  dact_TF.reset();
  tape.gate_up_AJ.reset();
  LinearBackwardWeight(backend_, dgate_up_TJ, tape.h_TD, p_.gate_up().grad, {});
  tape.h_TD.reset();
  at::Tensor dpartial_TD = LinearBackwardInput(dgate_up_TJ, p_.gate_up().weight);
  dgate_up_TJ.reset();
  const at::Tensor dh_TD = tp_.SumRows(dpartial_TD);
  dpartial_TD.reset();
  return RmsNormBackward(backend_, {tape.x_TD, tape.rstd_T, p_.norm2().weight}, dh_TD, /*residual_TD=*/dy_TD,
                         p_.norm2().grad);
}

}  // namespace stemma::worker
