// The part of an attention block that makes K and V: all that is wanted, in the last layer, of rows before the last
// prompt token. The input is this rank's rows, K and V are this rank's heads of all rows.
//
// Called by worker/model/{prefix,wave}.cc. It owns its tape as the other blocks do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "stemma/v1/plan.pb.h"
#include "worker/model/layer_context.h"
#include "worker/model/layer_parameters.h"
#include "worker/model/tape_entries.h"

namespace stemma::worker {

struct KvTape {
  at::Tensor x_TD, rstd_T, h_TD;
  at::Tensor kv_TJ, rstd_k_TJ;  // with QK-norm only
  at::Tensor k_TKE, v_TKE;

  std::vector<TapeEntry> Entries();
};

class KvBlock {
 public:
  KvBlock(const LayerContext& context, int64_t layer, const at::Tensor& positions_T);  // they outlive the block

  // K and V are the tape's.
  KvTape Forward(const at::Tensor& x_TD, v1::TapePolicy policy) const;

  // gk_TKE, gv_TKE: all gradients of K and V. Adds weight gradients. Returns dx.
  at::Tensor Backward(KvTape tape, const at::Tensor& gk_TKE, const at::Tensor& gv_TKE) const;

 private:
  void Norm(KvTape& tape) const;
  QkvHeads Kv(KvTape& tape) const;

  const LayerContext& context_;
  const ModelConfig& config_;
  const LayerParameters p_;
  const at::Tensor& positions_T_;
};

}  // namespace stemma::worker
