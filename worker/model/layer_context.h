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
  Communicator* cp = nullptr;                 // of the ranks that share the rows of prefixes; null: this one has all

  int64_t cp_rank() const { return cp == nullptr ? 0 : cp->rank(); }
  int64_t cp_size() const { return cp == nullptr ? 1 : cp->size(); }
  VocabularyShard vocabulary() const { return {tp, weights->vocabulary_begin}; }
};

}  // namespace stemma::worker
