// One transformer layer, forward and backward, for segments: rows that attend causally to themselves and to all K/V of
// their ancestor. Prefix, suffix and dense trajectory are the same to it.
//
// Called by worker/model/phases.h on the engine thread. A layer knows no phase, rank or residency. Forward keeps what
// the tape policy says; backward makes the rest again by the same ops on the same shapes, hence the same bits. Backward
// consumes the tape: what it does not need any more is freed on the way.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "stemma/v1/plan.pb.h"
#include "worker/model/weights.h"
#include "worker/ops/attention.h"
#include "worker/ops/qkv.h"

namespace stemma {

// Everything a layer needs beside its input; constant over the layers of a pass but for `attention.ancestors`.
struct LayerContext {
  const Weights* weights = nullptr;
  const AttentionKernel* kernel = nullptr;
  const RopeTable* rope = nullptr;
};

// What Backward reads. Undefined: dropped by the policy, or (QK-norm's) not there. common/cost.cc counts these tensors.
struct LayerTape {
  at::Tensor x_TD, rstd1_T, h1_TD;
  at::Tensor qkv_TX, rstd_qk_TX;  // with QK-norm only
  AttentionSaved attention;
  at::Tensor x2_TD, rstd2_T, h2_TD;
  at::Tensor gate_up_TX, act_TF;
};

// The tensors of a tape but its K and V, which stay on the device, moved out in a fixed order; and back.
std::vector<at::Tensor> TakeTensors(LayerTape& tape);
void PutTensors(LayerTape& tape, std::vector<at::Tensor> tensors);

struct LayerResult {
  at::Tensor y_TD;
  LayerTape tape;
};

LayerResult LayerForward(const LayerContext& context, int64_t layer, const AttentionBatch& batch,
                         const at::Tensor& positions_T, const at::Tensor& x_TD, v1::TapePolicy policy);

// gk_KTE, gv_KTE: gradients that other segments accumulated on this segment's K/V (undefined: none). Adds weight
// gradients; adds to the ancestors' gK/gV. Returns dx.
at::Tensor LayerBackward(const LayerContext& context, int64_t layer, const AttentionBatch& batch,
                         const at::Tensor& positions_T, at::Tensor dy_TD, LayerTape tape, const at::Tensor& gk_KTE,
                         const at::Tensor& gv_KTE);

// Rows of which only K and V are wanted: those before the last prompt token, in the last layer.
struct KvTape {
  at::Tensor x_TD, rstd1_T, h1_TD;
  at::Tensor kv_TX, rstd_k_TX;  // with QK-norm only
  at::Tensor k_KTE, v_KTE;
};

std::vector<at::Tensor> TakeTensors(KvTape& tape);
void PutTensors(KvTape& tape, std::vector<at::Tensor> tensors);

KvTape KvOnlyForward(const LayerContext& context, int64_t layer, const at::Tensor& positions_T, const at::Tensor& x_TD,
                     v1::TapePolicy policy);

at::Tensor KvOnlyBackward(const LayerContext& context, int64_t layer, const at::Tensor& positions_T, KvTape tape,
                          const at::Tensor& gk_KTE, const at::Tensor& gv_KTE);

}  // namespace stemma
