// A step whose parameters are sharded: its clusters laid side by side (server/planner/parameter_sweeps.h), the orders
// of pipeline stages, which all copies then share, and what gathering costs. Pure.
//
// In a place all copies run the same sweeps, so it takes as long as the copy that has most to compute there, or as the
// gathering, whichever is more: a unit is gathered while another one runs.
#pragma once

#include <vector>

#include "server/planner/memory_options.h"
#include "server/planner/planner.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Shares the sweeps of a step that is planned, and says in its report what that adds to it. `report.clusters` are those
// of the step, in their order.
void ShardStep(const PlannerModel& model, const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
               v1::StepPlan& step, v1::StepReport& report);

}  // namespace stemma::server
