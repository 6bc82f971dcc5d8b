// What a pass counted, as its vote carries it. Pure; called by the engine.
#pragma once

#include <cstdint>

#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/pass_sums.h"

namespace stemma::worker {

// Fills all fields but state_bytes, log_probs_s and those of the ranks' collectives, which the pass does not know.
internal::v1::StepSums StepSumsOf(const PassSums& sums);

// Adds the counts of each layer to the vote. `layer_begin`: the model's number of this rank's first layer.
void AddExpertLoad(const ExpertLoad& load, int64_t layer_begin, internal::v1::Vote& vote);

}  // namespace stemma::worker
