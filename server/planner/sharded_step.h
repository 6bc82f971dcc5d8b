// A step whose parameters are sharded: its clusters laid side by side (server/planner/parameter_sweeps.h), the orders
// of pipeline stages, which all copies then share, and what gathering costs. Pure.
//
// All copies run the same sweeps side by side, so an operation takes as long as the copy that has most to compute in
// it, or as its gathering, whichever is more: a unit is gathered while another one runs. Gradients are reduced in each
// backward sweep, or, where MemoryOptions::sums_gradients says so, in the last one only.
#pragma once

#include <cstdint>
#include <vector>

#include "server/planner/memory_options.h"
#include "server/planner/planner.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Returns how many rows a wave, or a cluster's prefixes, should have where memory allows: with fewer, forward and
// backward of them take less time than gathering for them, and reducing unless gradients are summed. At least
// kWaveRows, and no more than 16 times as many.
int64_t RowsWorthGathering(const PlannerModel& model, bool sums_gradients);

// Shares the sweeps of a step that is planned, and says in its report, whose phases are known, what that adds to it.
void ShardStep(const PlannerModel& model, const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
               v1::StepPlan& step, v1::StepReport& report);

}  // namespace stemma::server
