// What one group costs alone, by reuse and dense, which of the two it takes, and what it then costs its rank. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/planner/memory_chooser.h"
#include "server/planner/placement.h"
#include "server/planner/wave_packing.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Seconds decide under AUTO: those of the fastest way that fits the budget. Where only one of the two fits, that one;
// where neither does, packing will say so. `packing.reuse` is set to the answer, and why in one line returned.
//
// `flops_saved` is the part of the dense FLOPs that reuse saves, for the line of a forced REUSE.
std::string ChooseReuse(MemoryChooser& chooser, v1::Schedule schedule, double flops_saved, PackingGroup& packing);

// Takes reuse for a group that ChooseReuse would compute dense, so that ranks can share it. Returns why in one line;
// nullopt, and nothing is changed: it has no prefix, or does not fit the budget so.
std::optional<std::string> ReuseToShare(MemoryChooser& chooser, PackingGroup& packing);

// The cost model of a group with a prefix; also of one whose way was forced.
v1::GroupCost GroupCostOf(MemoryChooser& chooser, const PackingGroup& packing);

// The group as placement sees it, in the way that ChooseReuse took. It costs nothing if none of its rollouts runs, and
// if it does not fit the budget: packing then refuses the request.
PlacementGroup PlacementGroupOf(MemoryChooser& chooser, const PackingGroup& packing);

}  // namespace stemma::server
