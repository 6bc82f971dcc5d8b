// Deals a cluster's members to the context-parallel ranks that compute them: the most expensive first, each to the rank
// with the least to do (LPT), by exact FLOPs. Pure; O(n log n).
//
// Invariants: the same cluster is dealt in the same way whatever the memory, so that budgets change waves only; no rank
// has more than the mean and the most expensive member together; equally expensive members go in their order, and of
// equally full ranks the first is next. A member that is cut by rows is every rank's.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"
#include "server/planner/cost_model.h"

namespace stemma::server {

// Returns the FLOPs of a member's forward; its backward takes twice as many.
double MemberFlops(const ModelConfig& config, const MemberShape& member);

// Returns the rank of each member; of one that is cut by rows 0. REQUIRES: ranks >= 1.
std::vector<uint32_t> DealMembers(const ModelConfig& config, const std::vector<MemberShape>& members, int64_t ranks);

// Returns the FLOPs of the rank that has most, dealt so, in those that each had if all were even; of a member that is
// cut every rank has as much.
double DealtImbalance(const ModelConfig& config, const std::vector<MemberShape>& members, int64_t ranks);

}  // namespace stemma::server
