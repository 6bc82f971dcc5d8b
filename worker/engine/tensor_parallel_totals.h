// What the ranks that hold one copy of the model have exchanged inside of its layers, and of partial gradients.
#pragma once

#include "worker/parallel/collective_stats.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

// Returns this rank's totals since its communicators were made, agreements left out.
CollectiveTotals TensorParallelTotals(const MeshRanks& ranks);

}  // namespace stemma::worker
