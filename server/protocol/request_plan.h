// A request's frozen plan: the planner's plan, and per step what normalizes its loss. Pure; made once, before the
// request is accepted: what the machine's rates become later does not reach it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/admission/normalization.h"
#include "common/admission/training_request.h"
#include "server/planner/planner.h"
#include "server/protocol/step_warnings.h"

namespace stemma::server {

struct StepNumbers {
  double denominator = 1;                     // D of the aggregation
  std::vector<double> rollout_weights = {1};  // w of the aggregation, as Prepare has them
  uint64_t total_tokens = 0;  // prompt and response of every rollout, as a rollout framework counts them
  int64_t loss_tokens = 0;    // response tokens with mask 1
  EmptyGroups empty = {};     // of the mini-batch
  std::vector<std::string> lone_rewards = {};  // what is said of them, of the mini-batch
};

// Step k of the request is found by k. Where all epochs run the same steps, those of one epoch are held for all of
// them: a plan's size does not grow with its epochs, but under shuffle.
struct RequestPlan {
  v1::Plan plan;
  uint32_t repeats = 1;  // epochs that run plan.steps
  v1::PlanReport report;
  std::vector<StepNumbers> steps;  // one per plan.steps
  // By plan.steps and copy of the model (MeshPlace::dp_rank): what measured seconds are held against, those of the
  // copy's slowest rank; may be empty.
  std::vector<std::vector<PhaseWork>> work;
  std::shared_ptr<const RequestPlan> dense = nullptr;  // of a verification: the plan of its dense run

  uint32_t num_steps() const { return static_cast<uint32_t>(plan.steps_size()) * repeats; }
  const v1::StepPlan& step(uint32_t k) const { return plan.steps(static_cast<int>(HeldIndex(k))); }
  uint32_t epoch(uint32_t k) const {
    return repeats > 1 ? k / static_cast<uint32_t>(plan.steps_size()) : step(k).epoch();
  }
  const StepNumbers& numbers(uint32_t k) const { return steps.at(HeldIndex(k)); }
  const PhaseWork* phase_work(uint32_t k, size_t copy) const {
    return work.empty() ? nullptr : &work.at(HeldIndex(k)).at(copy);
  }

  size_t HeldIndex(uint32_t k) const { return k % static_cast<size_t>(plan.steps_size()); }  // into steps and work
};

// Returns what the planner reads of a request: the sizes of its groups, and its schedule, which is the run's where the
// request names none.
PlannerRequest PlannerRequestOf(const TrainingRequest& request, const v1::RunConfig& run);

// Plans a request; a verification's two runs, with shared prompts where its header names no schedule.
// `run` is divided (server/planner/memory_division.h). Errors: ResourceExhausted GROUP_TOO_LARGE, and what
// normalization refuses; Cancelled - `stop` said so. Thread safety: safe.
using PlanFunction = std::function<absl::StatusOr<RequestPlan>(const TrainingRequest& request, const v1::RunConfig& run,
                                                               const Rates& rates, const StopCheck& stop)>;

PlanFunction MakePlanFunction(const ModelConfig& model);

// A request that was kept, with the plan that was made for a mesh. Its phases are measured no more (`work` is
// empty).
struct LoadedRequest {
  std::shared_ptr<const TrainingRequest> request;
  RequestPlan plan;
  v1::Mesh mesh;
};

// Adds what normalizes the loss of each step, which follows from the request and its plan. Errors: as PlanFunction.
absl::Status AddStepNumbers(const TrainingRequest& request, const StopCheck& stop, RequestPlan& plan);

// Adds the same as it was counted when the request was accepted. REQUIRES: one entry of `decided` per plan.steps.
void AddDecidedNumbers(const TrainingRequest& request, std::vector<StepNormalization> decided, RequestPlan& plan);

// Replaces what normalizes the steps of a new plan for the request that `decided` was made for: steps that were decided
// are computed again with the numbers of their decision. Errors: FailedPrecondition - the mini-batches are others.
absl::Status KeepDecidedNumbers(const RequestPlan& decided, RequestPlan& plan);

}  // namespace stemma::server
