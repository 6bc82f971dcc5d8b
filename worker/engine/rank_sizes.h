// What a rank knows of the groups that it shares with others, of its weights and of a payload.
#pragma once

#include "worker/engine/payload.h"
#include "worker/model/weights.h"
#include "worker/parallel/communicator.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

// `dp` null: one rank.
RankSizes RankSizesOf(const Weights& weights, const Communicator* dp, const Payload& payload);

}  // namespace stemma::worker
