// Packs the groups of one copy of the model that runs on pipeline stages, or its part of one that copies share. Pure.
//
// Cut by memory alone, a step has few waves, and S stages idle for (S - 1) times the first wave's forward and the last
// one's backward, or the prefixes' phases where those are longer (server/planner/stage_orders.h). Smaller waves and
// clusters shorten that, but each of them reads the weights again and sends its messages. So several sizes are tried;
// the one that could end first is ordered, and taken if it does end before the packing by memory alone.
//
// Invariants:
//  (1) the step never ends later than with the packing that memory alone decides.
//  (2) tries are few: twice the binary logarithm of the number of rollouts at most, and none where stages idle for less
//      than kIdleShareWorthTries of the step. They are compared by LeastStageSeconds, and one of them is ordered.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/planner/memory_chooser.h"
#include "server/planner/planner.h"
#include "server/planner/stage_orders.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {

// Idle time is all that smaller waves can gain.
inline constexpr double kIdleShareWorthTries = 0.02;

struct StagedClusters {
  std::vector<PackedCluster> clusters;
  StageOrders orders;  // in which the stages run them; in a pass without backward one after the other
};

// `groups`: the request's; `packing`: those of them that the copy computes whole, or a part of one. `mark`: says of a
// part's cluster which copies share it, before it is ordered; none where groups are whole.
// REQUIRES: the chooser's options have several stages.
// Errors: see PackClusters.
absl::StatusOr<StagedClusters> PackForStages(MemoryChooser& chooser, const std::vector<PlannerGroup>& groups,
                                             const std::vector<PackingGroup>& packing,
                                             const std::function<void(v1::Cluster&)>& mark = {});

}  // namespace stemma::server
