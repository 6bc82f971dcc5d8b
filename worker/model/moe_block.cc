#include "worker/model/moe_block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sum.h>
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/cost/expert_rows.h"
#include "worker/ops/grouped_linear.h"
#include "worker/ops/linear.h"
#include "worker/ops/norm.h"
#include "worker/ops/swiglu.h"

namespace stemma::worker {

MoeBlock::MoeBlock(const LayerContext& context, int64_t layer, int64_t rows)
    : backend_(*context.backend),
      tp_(*context.tp),
      counted_(context.counted),
      layer_(layer),
      rows_(rows),
      rms_norm_eps_(context.weights->config.rms_norm_eps),
      experts_(context.weights->config.experts.value()),
      here_{context.weights->shard.expert_begin(), experts_.held()},
      p_(*context.weights, layer) {}

void MoeBlock::Norm(MlpTape& tape) const {
  auto norm = RmsNormForward(backend_, tape.x_TD, p_.norm2().weight, rms_norm_eps_);
  tape.rstd_T = norm.rstd_T;
  tape.h_TD = tp_.GatherRows(norm.y_TD, rows_);
}

void MoeBlock::Route(MlpTape& tape) const {
  at::Tensor logits_TX = LinearForward(tp_.LocalPart(tape.h_TD), p_.router().weight, {});
  logits_TX = tp_.GatherRows(logits_TX, rows_);
  tape.routing = RouteForward(std::move(logits_TX), experts_);
}

Dispatch MoeBlock::DispatchOf(const MlpTape& tape) const { return MakeDispatch(tape.routing.experts_TU, here_); }

void MoeBlock::GateUp(const Dispatch& dispatch, MlpTape& tape) const {
  tape.gate_up_AJ =
      GroupedLinearForward(RowsForExperts(tape.h_TD, dispatch), ByExpert(p_.gate_up().weight), dispatch.ends);
}

// Returns the weights as factors of rows, in the run dtype.
at::Tensor MoeBlock::WeightsFor(const Dispatch& dispatch, const MlpTape& tape) const {
  return ForExperts(tape.routing.weights_TU, dispatch).unsqueeze(1).to(tape.act_AF.scalar_type());
}

at::Tensor MoeBlock::Forward(at::Tensor x_TD, v1::TapePolicy policy, MlpTape& tape) const {
  tape.x_TD = std::move(x_TD);
  Norm(tape);
  Route(tape);
  const Dispatch dispatch = DispatchOf(tape);
  if (counted_ != nullptr) counted_->load->Add(layer_, dispatch.chosen_TU, counted_->multiplicity_T);
  // Where there are more assignments than are kept, the backward makes the products again.
  const bool keeps = dispatch.assignments() <= KeptAssignments(experts_, rows_);
  const v1::TapePolicy of_products = keeps ? policy : std::max(policy, v1::S2);
  GateUp(dispatch, tape);
  DropUnlessKept(tape, TapeTensor::kNormed, policy);
  tape.act_AF = SwigluForward(backend_, tape.gate_up_AJ);
  DropUnlessKept(tape, TapeTensor::kGateUp, of_products);
  at::Tensor weighted_AF = tape.act_AF * WeightsFor(dispatch, tape);
  DropUnlessKept(tape, TapeTensor::kActivation, of_products);
  at::Tensor y_AD = GroupedLinearForward(weighted_AF, ByExpert(p_.down().weight), dispatch.ends, dispatch.zero_rows());
  weighted_AF.reset();
  at::Tensor sum_TD = SumOfExperts(y_AD, dispatch);
  y_AD.reset();
  at::Tensor y_TD = tp_.SumRows(sum_TD) + tape.x_TD;
  for (const TapeTensor name : {TapeTensor::kRouting, TapeTensor::kResidual, TapeTensor::kStatistic}) {
    DropUnlessKept(tape, name, policy);
  }
  return y_TD;
}

Dispatch MoeBlock::Restore(MlpTape& tape) const {
  if (!tape.h_TD.defined()) Norm(tape);
  CHECK(tape.routing.experts_TU.defined()) << "a choice is kept as long as the input is";
  Dispatch dispatch = DispatchOf(tape);
  if (!tape.gate_up_AJ.defined()) GateUp(dispatch, tape);
  if (!tape.act_AF.defined()) tape.act_AF = SwigluForward(backend_, tape.gate_up_AJ);
  return dispatch;
}

// Returns d(gate and up), and d(weights) in `dweights_TU`; frees the tape's products.
at::Tensor MoeBlock::BackwardOfDown(const at::Tensor& dsum_TD, const Dispatch& dispatch, MlpTape& tape,
                                    at::Tensor& dweights_TU) const {
  const at::Tensor weights_A1 = WeightsFor(dispatch, tape);
  at::Tensor dy_AD = RowsForExperts(dsum_TD, dispatch);
  GroupedLinearBackwardWeight(backend_, dy_AD, tape.act_AF * weights_A1, ByExpert(p_.down().grad), dispatch.ends);
  at::Tensor dact_AF = GroupedLinearBackwardInput(dy_AD, ByExpert(p_.down().weight), dispatch.ends);
  dy_AD.reset();
  tape.act_AF.mul_(dact_AF);  // a kept activation is read here for the last time
  dweights_TU =
      FromExperts(at::sum(tape.act_AF, {1}, /*keepdim=*/false, tape.routing.weights_TU.scalar_type()), dispatch);
  tape.act_AF.reset();
  dact_AF.mul_(weights_A1);
  at::Tensor dgate_up_AJ = SwigluBackward(backend_, dact_AF, tape.gate_up_AJ);
  tape.gate_up_AJ.reset();
  return dgate_up_AJ;
}

// Returns dh with what comes through the router's products, of own rows; frees the norm's output.
at::Tensor MoeBlock::BackwardOfRouter(const at::Tensor& dweights_TU, const at::Tensor& dh_TD, MlpTape& tape) const {
  const at::Tensor dpartial_TX = RouteBackward(tape.routing, dweights_TU, experts_).to(dh_TD.scalar_type());
  const at::Tensor dlogits_TX = tp_.SumRows(dpartial_TX);
  LinearBackwardWeight(backend_, dlogits_TX, tp_.LocalPart(tape.h_TD), p_.router().grad, {});
  tape.h_TD.reset();
  return LinearForwardAdd(dlogits_TX, p_.router().weight.t(), dh_TD);
}

at::Tensor MoeBlock::Backward(at::Tensor dy_TD, MlpTape tape) const {
  const Dispatch dispatch = Restore(tape);
  at::Tensor dsum_TD = tp_.GatherRows(dy_TD, rows_), dweights_TU;
  at::Tensor dgate_up_AJ = BackwardOfDown(dsum_TD, dispatch, tape, dweights_TU);
  dsum_TD.reset();
  GroupedLinearBackwardWeight(backend_, dgate_up_AJ, RowsForExperts(tape.h_TD, dispatch), ByExpert(p_.gate_up().grad),
                              dispatch.ends);
  at::Tensor dx_AD =
      GroupedLinearBackwardInput(dgate_up_AJ, ByExpert(p_.gate_up().weight), dispatch.ends, dispatch.zero_rows());
  dgate_up_AJ.reset();
  at::Tensor dpartial_TD = SumOfExperts(dx_AD, dispatch);
  dx_AD.reset();
  at::Tensor dh_TD = tp_.SumRows(dpartial_TD);
  dpartial_TD.reset();
  dh_TD = BackwardOfRouter(dweights_TU, dh_TD, tape);
  return RmsNormBackward(backend_, {tape.x_TD, tape.rstd_T, p_.norm2().weight}, dh_TD, /*residual_TD=*/dy_TD,
                         p_.norm2().grad);
}

}  // namespace stemma::worker
