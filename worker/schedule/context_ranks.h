// Whether the clusters of a step are what the plan format allows for context-parallel ranks (stemma/v1/plan.proto). The
// server plans them so; the worker does not rely on it, because ranks of a copy would wait for each other in vain. All
// of them come to the same answer. Pure.
#pragma once

#include "absl/status/status.h"
#include "stemma/v1/plan.pb.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

// Errors: InvalidArgument - names the cluster, wave and field: a cp_rank that there is not; a split group whose K/V are
// to be gathered again; a wave that is cut by rows and comes too late, or has no ranks to be cut for; with several
// ranks also a prefix that the payload does not have.
absl::Status CheckContextRanks(const v1::StepPlan& step, const RankSizes& sizes);

}  // namespace stemma::worker
