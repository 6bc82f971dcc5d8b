// How the pass over log-probs that comes before a request's first optimizer step computes what the steps compute: in
// their own clusters, blocks of prefixes, waves and cuts. So its log-probs are the bits of a first step's forward, and
// that step's ratios are 1, in every dtype: rows that are added in another order differ by more than a narrow clip
// allows in bf16. Pure.
#pragma once

#include <vector>

#include "server/planner/memory_options.h"
#include "server/planner/planner.h"
#include "server/planner/wave_packing.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Returns a step's cluster as the pass runs it, with what it needs. Whether that is more than the budget, the caller
// asks: the pass may hold a checkpoint's weights, which the step does not.
// `options`: of the pass. `groups`: the request's. REQUIRES: the cluster has waves.
PackedCluster ForwardOfStep(const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
                            const v1::Cluster& of_step);

// Returns what a cluster computes of its groups, to pack it another way.
std::vector<PackingGroup> PackingOf(const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster);

}  // namespace stemma::server
