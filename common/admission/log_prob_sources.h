// Which weights a request's log-probs are computed with, by what its header names. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/admission/training_request.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

// Those that the model has when the request begins; any other name is a checkpoint's.
inline constexpr std::string_view kPolicyWeights = "policy";

// Returns what `old` and then `ref` name with WEIGHTS, each name once: the passes that run before the first step.
std::vector<std::string> WeightsOfPasses(const v1::UpdateHeader& header);

// Return the checkpoints among the weights that a request reads, each once.
std::vector<std::string> CheckpointsReadBy(const v1::UpdateHeader& header);
std::vector<std::string> CheckpointsReadBy(const TrainingRequest& request);

}  // namespace stemma
