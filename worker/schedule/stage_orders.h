// Whether a step's orders of the pipeline's stages are what the plan format allows (CopyStages of
// stemma/v1/plan.proto). The server plans them so; the worker does not rely on it, because stages would wait for each
// other in vain. All stages check the orders of all, and come to the same answer. Pure.
#pragma once

#include "absl/status/status.h"
#include "stemma/v1/plan.pb.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

// Errors: InvalidArgument - names the copy, stage and operation: an order for each stage is missing, does not run every
// operation once in the sequences' order, or runs a backward before its forward; stages would wait for each other for
// ever; the cluster of a group that copies share does not stand alone, from its first operation to its last.
absl::Status CheckStageOrders(const v1::StepPlan& step, bool forward_only, const RankSizes& sizes);

}  // namespace stemma::worker
