// What every block of a layer reads beside its input: constant over a pass.
#pragma once

#include "worker/model/weights.h"
#include "worker/ops/attention_kernel.h"
#include "worker/ops/qkv.h"

namespace stemma::worker {

struct LayerContext {
  const Weights* weights = nullptr;
  const AttentionKernel* kernel = nullptr;
  const RopeTable* rope = nullptr;
};

}  // namespace stemma::worker
