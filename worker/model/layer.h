// One transformer layer, forward and backward, for segments: an attention block and an MLP block, of one MLP or of
// experts. Prefix, suffix and dense trajectory are the same to it.
//
// Called by worker/model/{prefix,wave}.h on the engine thread. A layer knows no phase, rank or residency. Backward
// consumes the tape.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "stemma/v1/plan.pb.h"
#include "worker/model/attention_block.h"
#include "worker/model/layer_context.h"
#include "worker/model/mlp_tape.h"

namespace stemma::worker {

// What Backward reads.
struct LayerTape {
  AttentionTape attention;
  MlpTape mlp;

  std::vector<TapeEntry> Entries();
};

struct LayerResult {
  at::Tensor y_TD;
  LayerTape tape;
};

LayerResult LayerForward(const LayerContext& context, int64_t layer, LayerSegments segments, const at::Tensor& x_TD,
                         v1::TapePolicy policy);

// Adds weight gradients; adds to the ancestors' gK/gV, and lets go of the batch before it asks `segments.kv` for those
// of others. Returns dx.
at::Tensor LayerBackward(const LayerContext& context, int64_t layer, LayerSegments segments, at::Tensor dy_TD,
                         LayerTape tape);

}  // namespace stemma::worker
