// The MLP block of a layer with experts: y = x + Σ w_u · down_u(silu(gate_u(norm(x))) · up_u(norm(x))) over the experts
// u that the router chooses for a row.
//
// As worker/model/mlp_block.h, in whose place it stands. A weight w_u is multiplied in before the down product, which
// is linear: so its gradient needs no expert's output. Of several tensor-parallel ranks each has some columns of every
// expert, or of some experts, and the whole router, which it multiplies with its own rows; the products are gathered,
// so that all ranks have the same bits and send a row to the same experts. All ranks have all rows: each computes what
// its columns of its experts give, and a sum over the ranks puts it together, as it does what they give to the gradient
// of the router's products. The choice is made once: the tape keeps it under every policy that keeps the layer's input,
// so that a backward which recomputes can never train other experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "stemma/v1/plan.pb.h"
#include "worker/model/layer_context.h"
#include "worker/model/layer_parameters.h"
#include "worker/model/mlp_tape.h"
#include "worker/ops/routing.h"

namespace stemma::worker {

class MoeBlock {
 public:
  // `rows`: of all ranks. The context outlives the block. REQUIRES: the model has experts.
  MoeBlock(const LayerContext& context, int64_t layer, int64_t rows);

  // Do what MlpBlock's do.
  at::Tensor Forward(at::Tensor x_TD, v1::TapePolicy policy, MlpTape& tape) const;
  at::Tensor Backward(at::Tensor dy_TD, MlpTape tape) const;

 private:
  void Norm(MlpTape& tape) const;
  void Route(MlpTape& tape) const;
  Dispatch DispatchOf(const MlpTape& tape) const;
  void GateUp(const Dispatch& dispatch, MlpTape& tape) const;
  at::Tensor WeightsFor(const Dispatch& dispatch, const MlpTape& tape) const;
  Dispatch Restore(MlpTape& tape) const;
  at::Tensor BackwardOfDown(const at::Tensor& dsum_TD, const Dispatch& dispatch, MlpTape& tape,
                            at::Tensor& dweights_TU) const;
  at::Tensor BackwardOfRouter(const at::Tensor& dweights_TU, const at::Tensor& dh_TD, MlpTape& tape) const;
  // Views of parameters by expert.
  at::Tensor ByExpert(const at::Tensor& rows) const { return rows.view({here_.count, -1, rows.size(1)}); }

  const Backend& backend_;
  const TensorParallel& tp_;
  const CountedRows* const counted_;
  const int64_t layer_;
  const int64_t rows_;
  const double rms_norm_eps_;
  const Experts& experts_;
  const ExpertRange here_;
  const LayerParameters p_;
};

}  // namespace stemma::worker
