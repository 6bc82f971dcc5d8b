// Sharded parameters in a rank's program: which visits to units (common/cost/parameter_units.h) its operations make,
// and whether a plan lets all copies of the model make the same ones. Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/cost/parameter_units.h"
#include "stemma/v1/plan.pb.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

// Checks that clusters say their sweeps where parameters are sharded, and only there, and that this rank runs no more
// in a cluster than they say. The server plans so; the worker does not rely on it, because ranks would gather different
// layers together. Errors: InvalidArgument - names the cluster and field.
absl::Status CheckParameterSweeps(const v1::StepPlan& step, const RankSizes& sizes, bool sharded);

// Returns the visits of each operation of `program`, which ExpandStep has made of the step. REQUIRES:
// CheckParameterSweeps accepts it.
OperationVisits ProgramVisits(const Program& program, const v1::StepPlan& step, const RankSizes& sizes,
                              const ParameterUnits& units, bool forward_only);

}  // namespace stemma::worker
