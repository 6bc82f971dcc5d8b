// What every block of a layer reads beside its input: constant over a pass.
#pragma once

#include "worker/backend/backend.h"
#include "worker/model/weights.h"
#include "worker/ops/qkv.h"

namespace stemma::worker {

struct LayerContext {
  const Backend* backend = nullptr;
  const Weights* weights = nullptr;
  const RopeTable* rope = nullptr;
};

}  // namespace stemma::worker
