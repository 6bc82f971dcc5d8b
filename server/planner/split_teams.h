// Gives each of several hot groups a team of ranks of its own, so that no rank waits for the owners of two groups.
// Pure; see server/planner/group_split.h.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "server/planner/split_parts.h"

namespace stemma::server {

// Returns how each of the groups is split over a team, the first team of rank 0 on; nullopt: it stays whole. The last
// team to end does so as early as there are ranks for, and no team is larger than that takes. Splitting ends where the
// ranks would have more to do on average than the last team, with `others_s` of other groups between them. Groups are
// the caller's to name.
//
// `ranks`: of all teams and others.
std::vector<std::optional<GroupSplit>> CutForTeams(std::span<const GroupToSplit* const> groups, size_t ranks,
                                                   double others_s);

}  // namespace stemma::server
