// A request's frozen plan: the planner's plan, and per step what normalizes its loss. Pure; made once, when the request
// is accepted: what the machine's rates become later does not reach it.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/admission/training_request.h"
#include "server/core/planner.h"

namespace stemma {

struct StepNumbers {
  double denominator = 1;                   // D of the aggregation
  std::vector<double> prompt_mean_weights;  // prompt-mean only, of the step's groups in the plan's order
  uint64_t total_tokens = 0;                // prompt and response of every rollout, as a rollout framework counts them
};

struct RequestPlan {
  v1::Plan plan;
  v1::PlanReport report;
  std::vector<StepNumbers> steps;  // one per plan.steps
  std::vector<PhaseWork> work;     // one per plan.steps: what its measured seconds are held against
};

// `run` is divided (server/core/memory_division.h). Errors: ResourceExhausted GROUP_TOO_LARGE, and what normalization
// refuses.
using PlanFunction =
    std::function<absl::StatusOr<RequestPlan>(const TrainingRequest& request, const v1::RunConfig& run, const Rates&)>;

PlanFunction MakePlanFunction(const ModelConfig& model);

}  // namespace stemma
