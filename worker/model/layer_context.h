// What every block of a layer reads beside its input: constant over a pass.
#pragma once

#include "worker/backend/backend.h"
#include "worker/model/weights.h"
#include "worker/ops/qkv.h"
#include "worker/ops/tensor_parallel.h"
#include "worker/ops/vocabulary.h"

namespace stemma::worker {

struct LayerContext {
  const Backend* backend = nullptr;
  const Weights* weights = nullptr;
  const RopeTable* rope = nullptr;
  const TensorParallel* tp = &WholeLayers();  // of the ranks that hold these layers together

  VocabularyShard vocabulary() const { return {tp, weights->vocabulary_begin}; }
};

}  // namespace stemma::worker
