// A token's share of the loss: w / D of the aggregation mode (docs/losses.md). Pure, free of LibTorch. Called by the
// engine with the denominator that the server computed (common/admission/normalization.h).
#pragma once

#include <cstdint>

#include "common/trace/loss_names.h"

namespace stemma::worker {

struct TokenWeightInputs {
  int64_t mask_sum = 0;           // unmasked tokens of the rollout, or of its sample
  double prompt_mean_weight = 0;  // prompt-mean only: 1 / unmasked tokens of the stat_group
  double loss_scale_factor = 0;   // seq-mean-token-sum-norm only, > 0
  double denominator = 0;         // D of the mini-batch
};

// w / D of each unmasked token of a rollout. 0 for a rollout without any, and where D is 0 (nothing to average).
double TokenWeight(AggMode mode, const TokenWeightInputs& inputs);

}  // namespace stemma::worker
