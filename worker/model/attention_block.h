// The attention block of a layer: y = x + o(attention(qkv(norm(x)))), for segments: rows that attend causally to
// themselves and to all K/V of their ancestor.
//
// x, y and their gradients are this rank's rows, norm(x) and all between are this rank's heads of all rows:
// worker/ops/tensor_parallel.h.
//
// Called by worker/model/layer.h. A block owns its tape: Forward keeps what the policy says, Backward recomputes the
// rest with the same ops on the same shapes, hence the same bits, and frees what it does not need any more on the way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "stemma/v1/plan.pb.h"
#include "worker/backend/attention.h"
#include "worker/model/layer_context.h"
#include "worker/model/layer_parameters.h"
#include "worker/model/segment_kv.h"
#include "worker/model/tape_entries.h"

namespace stemma::worker {

struct AttentionTape {
  at::Tensor x_TD, rstd_T, h_TD;
  at::Tensor qkv_TJ, rstd_qk_TJ;  // with QK-norm only
  AttentionSaved saved;

  std::vector<TapeEntry> Entries();
};

// The segments that one call of a layer is for: whom they attend to, where they lie, and who else reads their K/V.
struct LayerSegments {
  AttentionBatch batch;
  const at::Tensor& positions_T;  // int64, of all rows
  const SegmentKv& kv = NobodyElse();
};

class AttentionBlock {
 public:
  // Everything but the batch outlives the block.
  AttentionBlock(const LayerContext& context, int64_t layer, LayerSegments segments);

  // Returns y; fills the tape, which is empty.
  at::Tensor Forward(const at::Tensor& x_TD, v1::TapePolicy policy, AttentionTape& tape) const;

  // Recomputes y, and what Backward reads, from the input and K/V.
  at::Tensor RestoreOutput(AttentionTape& tape) const;

  // Adds weight gradients; adds to the ancestors' gK/gV. Returns dx. Called last: the batch is gone then, so that what
  // ancestors' K/V and gK/gV are views of can be freed.
  at::Tensor Backward(const at::Tensor& dy_TD, AttentionTape tape);

 private:
  void Norm(AttentionTape& tape) const;
  QkvHeads Qkv(AttentionTape& tape) const;
  at::Tensor Attend(const QkvHeads& heads, AttentionTape& tape) const;
  int64_t rows() const { return positions_T_.numel(); }  // of all ranks
  void RestoreQueries(AttentionTape& tape) const;

  const LayerContext& context_;
  const ModelConfig& config_;
  const LayerParameters p_;
  AttentionBatch batch_;
  const at::Tensor& positions_T_;
  const SegmentKv& kv_;
};

}  // namespace stemma::worker
