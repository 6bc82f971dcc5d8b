// What Phases A, B and C share. Private to worker/model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/model/layer.h"

namespace stemma::worker {

double AttentionScale(const ModelConfig& config);
// [rows, K, E]: zeros of the accumulate dtype; room for K or V.
at::Tensor ZeroKv(const LayerContext& context, int64_t rows);
at::Tensor EmptyKv(const LayerContext& context, int64_t rows);
// This rank's rows of the tokens' embeddings; adds to the embedding's gradient.
at::Tensor Embed(const LayerContext& context, const at::Tensor& tokens_T);
void EmbedBackward(const LayerContext& context, const at::Tensor& tokens_T, const at::Tensor& dx_TD);
// Where a segment's layers begin and end on this rank: with its tokens, or what the stage before has made; with a
// gradient of the output, which the next stage has made. REQUIRES, of the latter: not the last stage.
at::Tensor SegmentInput(const LayerContext& context, const at::Tensor& tokens_T);
at::Tensor OutputGradient(const LayerContext& context, int64_t rows);
// Adds the input's gradient to the embedding's, or hands it to the stage before.
void SegmentInputBackward(const LayerContext& context, const at::Tensor& tokens_T, at::Tensor dx_TD);

}  // namespace stemma::worker
