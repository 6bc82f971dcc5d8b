#include "worker/model/phase_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

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

at::Tensor Embed(const LayerContext& context, const at::Tensor& tokens_T) {
  return EmbeddingForward(context.vocabulary(), tokens_T, context.weights->at(context.weights->embedding).weight);
}

void EmbedBackward(const LayerContext& context, const at::Tensor& tokens_T, const at::Tensor& dx_TD) {
  EmbeddingBackward(*context.backend, context.vocabulary(), tokens_T, dx_TD,
                    context.weights->at(context.weights->embedding).grad);
}

}  // namespace stemma::worker
