#include "worker/model/layer.h"

#include <utility>

namespace stemma::worker {

std::vector<TapeEntry> LayerTape::Entries() {
  std::vector<TapeEntry> entries = attention.Entries();
  for (const TapeEntry& entry : mlp.Entries()) entries.push_back(entry);
  return entries;
}

LayerResult LayerForward(const LayerContext& context, int64_t layer, AttentionBatch batch,
                         const at::Tensor& positions_T, const at::Tensor& x_TD, v1::TapePolicy policy,
                         const SegmentKv& kv) {
  LayerTape tape;
  at::Tensor middle_TD =
      AttentionBlock(context, layer, std::move(batch), positions_T, kv).Forward(x_TD, policy, tape.attention);
  at::Tensor y_TD = MlpBlock(context, layer, positions_T.numel()).Forward(std::move(middle_TD), policy, tape.mlp);
  return {std::move(y_TD), std::move(tape)};
}

at::Tensor LayerBackward(const LayerContext& context, int64_t layer, AttentionBatch batch,
                         const at::Tensor& positions_T, at::Tensor dy_TD, LayerTape tape, const SegmentKv& kv) {
  AttentionBlock attention(context, layer, std::move(batch), positions_T, kv);
  if (!tape.mlp.x_TD.defined()) tape.mlp.x_TD = attention.RestoreOutput(tape.attention);
  const at::Tensor dmiddle_TD =
      MlpBlock(context, layer, positions_T.numel()).Backward(std::move(dy_TD), std::move(tape.mlp));
  return attention.Backward(dmiddle_TD, std::move(tape.attention));
}

}  // namespace stemma::worker
