#include "worker/model/layer.h"

#include <utility>

#include "worker/model/mlp_block.h"
#include "worker/model/moe_block.h"

namespace stemma::worker {

namespace {

// Calls f(the layer's second block).
template <typename F>
auto WithMlp(const LayerContext& context, int64_t layer, int64_t rows, const F& f) {
  return context.weights->config.experts ? f(MoeBlock(context, layer, rows)) : f(MlpBlock(context, layer, rows));
}

}  // namespace

std::vector<TapeEntry> LayerTape::Entries() {
  std::vector<TapeEntry> entries = attention.Entries();
  for (const TapeEntry& entry : mlp.Entries()) entries.push_back(entry);
  return entries;
}

LayerResult LayerForward(const LayerContext& context, int64_t layer, LayerSegments segments, const at::Tensor& x_TD,
                         v1::TapePolicy policy) {
  const int64_t rows = segments.positions_T.numel();
  LayerTape tape;
  at::Tensor middle_TD = AttentionBlock(context, layer, std::move(segments)).Forward(x_TD, policy, tape.attention);
  at::Tensor y_TD = WithMlp(context, layer, rows,
                            [&](const auto& mlp) { return mlp.Forward(std::move(middle_TD), policy, tape.mlp); });
  return {std::move(y_TD), std::move(tape)};
}

at::Tensor LayerBackward(const LayerContext& context, int64_t layer, LayerSegments segments, at::Tensor dy_TD,
                         LayerTape tape) {
  const int64_t rows = segments.positions_T.numel();
  AttentionBlock attention(context, layer, std::move(segments));
  if (!tape.mlp.x_TD.defined()) tape.mlp.x_TD = attention.RestoreOutput(tape.attention);
  const at::Tensor dmiddle_TD = WithMlp(
      context, layer, rows, [&](const auto& mlp) { return mlp.Backward(std::move(dy_TD), std::move(tape.mlp)); });
  return attention.Backward(dmiddle_TD, std::move(tape.attention));
}

}  // namespace stemma::worker
