// What a rank knows of the groups that it shares with others, and of a payload.
#pragma once

#include "worker/engine/payload.h"
#include "worker/parallel/mesh_ranks.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

// `data`: of MeshRanks; null: one rank. Bytes of rows are left out: only the checker of programs reads them.
RankSizes RankSizesOf(const Communicator* data, const CopyRanks& copy, const Payload& payload);

}  // namespace stemma::worker
