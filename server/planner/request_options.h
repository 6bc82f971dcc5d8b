// The memory options under which a request is planned: of its optimizer steps, and of passes without backward. Pure.
#pragma once

#include <cstdint>

#include "server/planner/memory_options.h"
#include "server/planner/planner.h"

namespace stemma::server {

// Returns the options of the request's steps, or, with `forward_only`, of its passes. What the device keeps beside
// every cluster is off the budget. `sums_gradients`: of sharded parameters, in each optimizer step, to reduce them
// once.
MemoryOptions RequestOptions(const PlannerModel& model, const PlannerRequest& request, bool forward_only,
                             bool sums_gradients);

// Returns the bytes of the weights that passes read from a checkpoint, and hold beside the model's own.
int64_t CheckpointBytes(const PlannerModel& model, const PlannerRequest& request);

}  // namespace stemma::server
