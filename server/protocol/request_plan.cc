#include "server/protocol/request_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "common/admission/normalization.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/trace/loss_names.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr size_t kTokenBytes = sizeof(int32_t);

uint64_t TotalTokens(const std::vector<v1::PromptGroup>& groups, const v1::StepPlan& step) {
  uint64_t tokens = 0;
  for (uint32_t index : step.groups()) {
    const v1::PromptGroup& group = groups.at(index);
    tokens += group.rollouts_size() * (group.prompt_tokens().size() / kTokenBytes);
    for (const v1::Rollout& rollout : group.rollouts()) tokens += rollout.response_tokens().size() / kTokenBytes;
  }
  return tokens;
}

// What is said of each step of a request beside its loss. `request` outlives it.
class NumbersOfSteps {
 public:
  explicit NumbersOfSteps(const TrainingRequest& request)
      : request_(request),
        runs_(FindGroupsThatRun(request.update, request.groups)),
        lone_(FindLoneRewards(request.groups)) {}

  StepNumbers Of(const v1::StepPlan& step, StepNormalization normalization) const {
    const std::vector<uint32_t> mini_batch(step.groups().begin(), step.groups().end());
    return {.denominator = normalization.denominator,
            .rollout_weights = std::move(normalization.rollout_weights),
            .total_tokens = TotalTokens(request_.groups, step),
            .loss_tokens = normalization.num_loss_tokens,
            .empty = CountEmptyGroups(request_.update, request_.groups, runs_, mini_batch),
            .lone_rewards = LoneRewardWarnings(request_.groups, lone_, mini_batch)};
  }

 private:
  const TrainingRequest& request_;
  const std::vector<GroupRuns> runs_;
  const std::vector<bool> lone_;
};

// Plans a request as it is asked to be computed.
struct RequestPlanner {
  PlannerModel model;
  const TrainingRequest& request;
  const StopCheck& stop;

  absl::StatusOr<RequestPlan> Plan(const PlannerRequest& asked) const {
    ASSIGN_OR_RETURN(PlanResult planned, MakePlan(model, asked, stop));
    RequestPlan plan;
    plan.plan = std::move(planned.plan);
    plan.repeats = planned.repeats;
    plan.report = std::move(planned.report);
    plan.work = std::move(planned.work);
    if (request.has_loss()) RETURN_IF_ERROR(AddStepNumbers(request, stop, plan));
    return plan;
  }
};

}  // namespace

PlannerRequest PlannerRequestOf(const TrainingRequest& request, const v1::RunConfig& run) {
  const v1::UpdateHeader& header = request.update;
  PlannerRequest result;
  for (const v1::PromptGroup& group : request.groups) {
    PlannerGroup& to = result.groups.emplace_back();
    to.uid = group.uid();
    to.prompt_tokens = group.prompt_tokens().size() / kTokenBytes;
    for (const v1::Rollout& rollout : group.rollouts()) {
      const int64_t tokens = rollout.response_tokens().size() / kTokenBytes;
      to.rollouts.push_back(
          {.response_tokens = tokens, .run = tokens > 0 && (!request.has_loss() || RolloutRuns(header, rollout))});
    }
  }
  result.schedule = request.header().has_schedule() ? request.header().schedule() : run.schedule();
  if (result.schedule == v1::SCHEDULE_UNSPECIFIED) result.schedule = v1::AUTO;
  result.forward_only = !request.has_loss();
  result.reads_checkpoint = !CheckpointsReadBy(request).empty();
  if (!request.has_loss()) return result;
  result.mini_batch_groups = static_cast<int64_t>(header.ppo_mini_batch_size());
  result.epochs = header.has_ppo_epochs() ? header.ppo_epochs() : 1;
  result.shuffle = header.shuffle();
  result.seed = header.seed();
  result.payload_digest = request.digest;
  result.log_prob_passes = static_cast<int>(WeightsOfPasses(header).size());
  const absl::StatusOr<LossMode> mode = ParseLossMode(header.loss().loss_mode());
  result.whole_rollouts = mode.ok() && NeedsWholeRollouts(*mode);
  return result;
}

absl::Status AddStepNumbers(const TrainingRequest& request, const StopCheck& stop, RequestPlan& plan) {
  const NumbersOfSteps numbers(request);
  const StepNormalizer normalizer(request.update.loss(), request.groups);
  for (const v1::StepPlan& step : plan.plan.steps()) {
    if (stop && stop()) return absl::CancelledError("planning was stopped");
    const std::vector<uint32_t> mini_batch(step.groups().begin(), step.groups().end());
    ASSIGN_OR_RETURN(StepNormalization normalization, normalizer.Normalize(mini_batch));
    plan.steps.push_back(numbers.Of(step, std::move(normalization)));
  }
  return absl::OkStatus();
}

void AddDecidedNumbers(const TrainingRequest& request, std::vector<StepNormalization> decided, RequestPlan& plan) {
  CHECK_EQ(decided.size(), static_cast<size_t>(plan.plan.steps_size())) << request.header().request_id();
  const NumbersOfSteps numbers(request);
  for (size_t i = 0; i < decided.size(); ++i) {
    plan.steps.push_back(numbers.Of(plan.plan.steps(static_cast<int>(i)), std::move(decided[i])));
  }
}

absl::Status KeepDecidedNumbers(const RequestPlan& decided, RequestPlan& plan) {
  const auto same_groups = [](const v1::StepPlan& a, const v1::StepPlan& b) {
    return std::equal(a.groups().begin(), a.groups().end(), b.groups().begin(), b.groups().end());
  };
  const auto &before = decided.plan.steps(), &now = plan.plan.steps();
  if (decided.repeats != plan.repeats ||
      !std::equal(before.begin(), before.end(), now.begin(), now.end(), same_groups)) {
    return absl::FailedPreconditionError("its mini-batches would be others than those of the steps that were decided");
  }
  plan.steps = decided.steps;
  return absl::OkStatus();
}

PlanFunction MakePlanFunction(const ModelConfig& model) {
  return [model](const TrainingRequest& request, const v1::RunConfig& run, const Rates& rates,
                 const StopCheck& stop) -> absl::StatusOr<RequestPlan> {
    const RequestPlanner planner = {{.config = model, .run = run, .rates = rates}, request, stop};
    PlannerRequest asked = PlannerRequestOf(request, run);
    const bool verifies = request.kind == TrainingRequest::Kind::kVerify;
    if (verifies && !request.header().has_schedule()) asked.schedule = v1::REUSE;
    ASSIGN_OR_RETURN(RequestPlan plan, planner.Plan(asked));
    if (!verifies) return plan;
    asked.schedule = v1::DENSE;
    asked.beside_gradients = true;
    absl::StatusOr<RequestPlan> dense = planner.Plan(asked);
    if (!dense.ok()) {
      return WithMessage(dense.status(), absl::StrCat("dense, beside the gradients that it is compared with: ",
                                                      std::string(dense.status().message())));
    }
    plan.dense = std::make_shared<const RequestPlan>(*std::move(dense));
    return plan;
  };
}

}  // namespace stemma::server
