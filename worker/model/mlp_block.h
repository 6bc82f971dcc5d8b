// The MLP block of a layer: y = x + down(silu(gate(norm(x))) · up(norm(x))).
//
// x, y and their gradients are this rank's rows, norm(x) and all between are this rank's columns of all rows:
// worker/ops/tensor_parallel.h.
//
// Called by worker/model/layer.h. As worker/model/attention_block.h, it owns its tape: Forward keeps what the policy
// says, Backward recomputes the rest with the same ops, and frees on the way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "stemma/v1/plan.pb.h"
#include "worker/model/layer_context.h"
#include "worker/model/layer_parameters.h"
#include "worker/model/mlp_tape.h"

namespace stemma::worker {

class MlpBlock {
 public:
  // `rows`: of all ranks. The context outlives the block.
  MlpBlock(const LayerContext& context, int64_t layer, int64_t rows);

  // Returns y; fills the tape, which is empty. Where the policy does not keep the input, whoever made it has to give it
  // back before Backward.
  at::Tensor Forward(at::Tensor x_TD, v1::TapePolicy policy, MlpTape& tape) const;

  // Adds weight gradients. Returns dx.
  at::Tensor Backward(at::Tensor dy_TD, MlpTape tape) const;

 private:
  void Norm(MlpTape& tape) const;
  void GateUp(MlpTape& tape) const;
  void Restore(MlpTape& tape) const;

  const Backend& backend_;
  const TensorParallel& tp_;
  const int64_t rows_;
  const double rms_norm_eps_;
  const LayerParameters p_;
};

}  // namespace stemma::worker
