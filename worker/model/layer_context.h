// What every block of a layer reads beside its input: constant over a pass.
#pragma once

#include "worker/backend/backend.h"
#include "worker/model/expert_load.h"
#include "worker/model/parameter_access.h"
#include "worker/model/stage_links.h"
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
  StageLinks* stages = &OnlyStage();          // to the ranks that have the layers before and after these
  ParameterAccess* parameters = &WholeParameters();  // of `weights`
  const CountedRows* counted = nullptr;  // hears which experts the rows of a forward choose; null: nobody does

  int64_t cp_rank() const { return cp == nullptr ? 0 : cp->rank(); }
  int64_t cp_size() const { return cp == nullptr ? 1 : cp->size(); }
  int64_t layers() const { return weights->config.num_layers; }  // of this rank
  // Returns how many of its layers a prefix runs in full: in the model's last one it makes K and V only.
  int64_t full_layers() const { return stages->is_last() ? layers() - 1 : layers(); }
  VocabularyShard vocabulary() const { return {tp, weights->vocabulary_begin}; }
};

}  // namespace stemma::worker
