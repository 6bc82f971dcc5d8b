// What a rank knows of the groups that it shares with others, of its weights and of a payload.
#pragma once

#include "worker/engine/payload.h"
#include "worker/model/weights.h"
#include "worker/parallel/mesh_ranks.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

// `data`: of MeshRanks; null: one rank.
RankSizes RankSizesOf(const Weights& weights, const Communicator* data, const CopyRanks& copy, const Payload& payload);

}  // namespace stemma::worker
