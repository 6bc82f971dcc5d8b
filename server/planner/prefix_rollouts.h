// The logical multiplicity of shared prefixes (the paper, Appendix B), said in a step that is planned. Pure. Called by
// server/planner/step_planner.h once all ranks' clusters are there.
#pragma once

#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Sets Cluster.prefix_rollouts in each cluster: of a split group, too, whose rollouts several clusters have.
void SetPrefixRollouts(v1::StepPlan& step);

}  // namespace stemma::server
