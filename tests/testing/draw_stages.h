// Gives plans the orders of a pipeline's stages, as drawn: any that the plan format allows, and no planner would
// choose. Clusters of groups that copies share stand alone.
#pragma once

#include <cstdint>

#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Replaces the orders of all copies in the step. `seed` 0: each stage runs a backward as soon as it can, else a
// forward. With one stage it does nothing.
void DrawStages(uint32_t seed, const v1::Mesh& mesh, v1::StepPlan& step);

}  // namespace stemma::testing
