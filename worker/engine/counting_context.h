// The context of a pass's forwards, in which the rows of a step are counted by the experts that they choose. Called by
// the pass runner.
#pragma once

#include "worker/model/expert_load.h"
#include "worker/model/layer_context.h"

namespace stemma::worker {

// What it is made of outlives it.
class CountingContext {
 public:
  // `counts`: a step runs, and no other rank that runs the same rows counts them. Every stage counts its own layers.
  CountingContext(const LayerContext& context, bool counts, ExpertLoad& load) : counted_{&load}, context_(context) {
    const ModelConfig& config = context.weights->config;
    if (!counts || !config.experts) return;
    load = ExpertLoad(config.num_layers, config.experts->count);
    context_.counted = &counted_;
  }
  CountingContext(const CountingContext&) = delete;
  CountingContext& operator=(const CountingContext&) = delete;

  const LayerContext& operator*() const { return context_; }

 private:
  const CountedRows counted_;
  LayerContext context_;
};

}  // namespace stemma::worker
