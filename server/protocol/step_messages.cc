#include "server/protocol/step_messages.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/admission/log_prob_sources.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr double kClipEpsilon = 1e-6;

}  // namespace

bool RunsEntryPass(const RequestPlan& plan, uint32_t k) { return k == 0 && plan.plan.has_log_prob_pass(); }

bool StepNeedsWorker(const RequestPlan& plan, uint32_t k) {
  return plan.step(k).clusters_size() > 0 || RunsEntryPass(plan, k);
}

internal::v1::Prepare MakePrepare(const internal::v1::StepKey& key, const v1::UpdateHeader& header,
                                  const RequestPlan& plan) {
  const StepNumbers& numbers = plan.numbers(key.k());
  internal::v1::Prepare prepare;
  *prepare.mutable_key() = key;
  *prepare.mutable_header() = header;
  *prepare.mutable_plan() = plan.step(key.k());
  prepare.mutable_plan()->set_epoch(plan.epoch(key.k()));
  if (RunsEntryPass(plan, key.k())) {
    *prepare.mutable_log_prob_pass() = plan.plan.log_prob_pass();
    for (std::string& name : WeightsOfPasses(header)) prepare.add_pass_weights()->set_name(std::move(name));
  }
  prepare.set_denominator(numbers.denominator);
  prepare.mutable_rollout_weights()->Add(numbers.rollout_weights.begin(), numbers.rollout_weights.end());
  *prepare.mutable_predicted() = StepReportOf(plan, key.k()).seconds();
  return prepare;
}

double ClipFactor(const v1::AdamParams& adam, double grad_norm_squared) {
  if (adam.max_grad_norm() <= 0) return 1;
  return std::min(1.0, adam.max_grad_norm() / (std::sqrt(grad_norm_squared) + kClipEpsilon));
}

StepDecision DecideStep(const v1::AdamParams& adam, const internal::v1::Vote& vote, v1::StepResult::Outcome outcome) {
  if (outcome != v1::StepResult::APPLIED) return {.outcome = outcome};
  return {.outcome = outcome, .clip = ClipFactor(adam, vote.grad_norm_squared())};
}

internal::v1::Apply MakeApply(const internal::v1::StepKey& key, const v1::AdamParams& adam, const RequestPlan& plan,
                              const StepDecision& decision) {
  internal::v1::Apply apply;
  *apply.mutable_key() = key;
  *apply.mutable_adam() = adam;
  if (decision.outcome == v1::StepResult::APPLIED) {
    apply.set_clip(decision.clip);
    apply.set_predicted_s(StepReportOf(plan, key.k()).seconds().apply());
  } else {
    apply.set_discard(true);
  }
  return apply;
}

const v1::StepReport& StepReportOf(const RequestPlan& plan, uint32_t k) {
  const int passes_before_steps = plan.report.steps_size() - plan.plan.steps_size();
  CHECK_GE(passes_before_steps, 0) << "the report lacks steps of the plan";
  return plan.report.steps(passes_before_steps + static_cast<int>(plan.HeldIndex(k)));
}

}  // namespace stemma::server
