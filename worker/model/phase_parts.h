// What Phases A, B and C share. Private to worker/model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "common/cost/context_rows.h"
#include "worker/model/layer.h"

namespace stemma::worker {

double AttentionScale(const ModelConfig& config);
// [rows, K, E]: zeros of the accumulate dtype; room for K or V.
at::Tensor ZeroKv(const LayerContext& context, int64_t rows);
at::Tensor EmptyKv(const LayerContext& context, int64_t rows);
// Returns the spans of a rank's pieces, in their order, each behind `earlier` of its rows: the `ancestor_rows` that all
// attend to, and the earlier ones of its own prefix or suffix. No span has an ancestor of no rows.
AttentionBatch BatchOfPieces(const LayerContext& context, const std::vector<ContextPiece>& pieces,
                             int64_t ancestor_rows,
                             const std::function<AncestorKv(const ContextPiece& piece, int64_t rows)>& earlier);
// Where a segment's layers begin and end on this rank: with its tokens, or what the stage before has made; with a
// gradient of the output, which the next stage has made. REQUIRES, of the latter: not the last stage.
at::Tensor SegmentInput(const LayerContext& context, const at::Tensor& tokens_T);
at::Tensor OutputGradient(const LayerContext& context, int64_t rows);
// Adds the input's gradient to the embedding's, or hands it to the stage before.
void SegmentInputBackward(const LayerContext& context, const at::Tensor& tokens_T, at::Tensor dx_TD);

}  // namespace stemma::worker
