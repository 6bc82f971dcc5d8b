// Improves a placement with split groups step by step, while the slowest rank ends sooner. Pure; see
// server/planner/group_split.h.
#pragma once

#include <functional>
#include <span>

#include "server/planner/group_split.h"

namespace stemma::server {

// Moves rollouts between the parts of a group, and groups that are computed whole to another place or rank. Changes
// `splits`, `shared` and `whole` of the placement; the first `pinned` splits stay as they are. Ends after so many
// attempts, found or not: what is asked of the caller's time does not grow with the mini-batch.
void Improve(std::span<const PlacementGroup> groups, size_t pinned,
             const std::function<const SplitCosts&(size_t group)>& costs, SplitPlacement& placement);

}  // namespace stemma::server
