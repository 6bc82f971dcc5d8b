#include "worker/model/phase_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "worker/ops/vocabulary.h"

namespace stemma::worker {

double AttentionScale(const ModelConfig& config) { return 1.0 / std::sqrt(static_cast<double>(config.head_size)); }

at::Tensor ZeroKv(const LayerContext& context, int64_t rows) {
  const Weights& weights = *context.weights;
  return at::zeros({rows, weights.config.num_kv_heads, weights.config.head_size},
                   context.backend->options(weights.accumulate_dtype));
}

at::Tensor EmptyKv(const LayerContext& context, int64_t rows) {
  const Weights& weights = *context.weights;
  return at::empty({rows, weights.config.num_kv_heads, weights.config.head_size},
                   context.backend->options(weights.run_dtype));
}

AttentionBatch BatchOfPieces(const LayerContext& context, const std::vector<ContextPiece>& pieces,
                             int64_t ancestor_rows,
                             const std::function<AncestorKv(const ContextPiece& piece, int64_t rows)>& earlier) {
  AttentionBatch batch;
  batch.scale = AttentionScale(context.weights->config);
  int64_t row = 0;
  for (const ContextPiece& piece : pieces) {
    AttentionSpan span{row, row + piece.rows(), -1};
    const int64_t rows = ancestor_rows + piece.begin - piece.prefix_begin;
    if (rows > 0) {
      batch.ancestors.push_back(earlier(piece, rows));
      span.ancestor = static_cast<int64_t>(batch.ancestors.size()) - 1;
    }
    batch.spans.push_back(span);
    row = span.end;
  }
  return batch;
}

namespace {

at::Tensor Embed(const LayerContext& context, const at::Tensor& tokens_T) {
  context.parameters->Embedding(UnitUse::kRead);
  return EmbeddingForward(context.vocabulary(), tokens_T, context.weights->at(context.weights->embedding).weight);
}

void EmbedBackward(const LayerContext& context, const at::Tensor& tokens_T, const at::Tensor& dx_TD) {
  context.parameters->Embedding(UnitUse::kGradient);
  EmbeddingBackward(*context.backend, context.vocabulary(), tokens_T, dx_TD,
                    context.weights->at(context.weights->embedding).grad);
}

// Room for this rank's part of so many rows of hidden states.
at::Tensor EmptyHidden(const LayerContext& context, int64_t rows) {
  const Weights& weights = *context.weights;
  return at::empty({context.tp->LocalRows(rows), weights.config.hidden_size},
                   context.backend->options(weights.run_dtype));
}

}  // namespace

at::Tensor SegmentInput(const LayerContext& context, const at::Tensor& tokens_T) {
  if (context.stages->is_first()) return Embed(context, tokens_T);
  at::Tensor x_TD = EmptyHidden(context, tokens_T.numel());
  context.stages->ReceiveHidden(x_TD);
  return x_TD;
}

at::Tensor OutputGradient(const LayerContext& context, int64_t rows) {
  at::Tensor dx_TD = EmptyHidden(context, rows);
  context.stages->ReceiveGradient(dx_TD);
  return dx_TD;
}

void SegmentInputBackward(const LayerContext& context, const at::Tensor& tokens_T, at::Tensor dx_TD) {
  if (context.stages->is_first()) return EmbedBackward(context, tokens_T, dx_TD);
  context.stages->SendGradient(std::move(dx_TD));
}

}  // namespace stemma::worker
