// Whether a rank's clusters of split groups are what the plan format allows (stemma/v1/plan.proto). The server plans
// them so; the worker does not rely on it, because what it would wait for might never come. Pure.
#pragma once

#include "absl/status/status.h"
#include "stemma/v1/plan.pb.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

// Errors: InvalidArgument - names the cluster and field: a rank that there is not or that is this one, helpers that do
// not ascend, an owner that is also a helper, other groups than the split one, a rollout twice, no waves, a helper with
// a prefix policy, blocks or offload, two clusters of one split group, or a group without a prefix in the payload.
absl::Status CheckSplitGroups(const v1::StepPlan& step, const RankSizes& sizes);

}  // namespace stemma::worker
