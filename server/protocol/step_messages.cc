#include "server/protocol/step_messages.h"

#include <algorithm>
#include <cmath>
#include <utility>

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
  if (RunsEntryPass(plan, key.k())) *prepare.mutable_log_prob_pass() = plan.plan.log_prob_pass();
  prepare.set_denominator(numbers.denominator);
  prepare.mutable_rollout_weights()->Add(numbers.rollout_weights.begin(), numbers.rollout_weights.end());
  *prepare.mutable_predicted() = StepReportOf(plan, key.k()).seconds();
  return prepare;
}

internal::v1::Prepare PrepareOfRank(const internal::v1::Prepare& whole, v1::StepPlan step, v1::StepPlan entry_pass,
                                    const std::vector<int64_t>& num_rollouts) {
  internal::v1::Prepare prepare = whole;
  if (whole.rollout_weights_size() > 1) {
    prepare.clear_rollout_weights();
    int next = 0;  // of the whole's weights
    auto own = step.groups().begin();
    for (const uint32_t group : whole.plan().groups()) {
      const int end = next + static_cast<int>(num_rollouts.at(group));
      const bool here = own != step.groups().end() && *own == group;
      if (here) ++own;
      for (; next < end; ++next) {
        if (here) prepare.add_rollout_weights(whole.rollout_weights(next));
      }
    }
    CHECK_EQ(next, whole.rollout_weights_size());
    CHECK(own == step.groups().end()) << "a rank's groups are some of the step's, in their order";
  }
  *prepare.mutable_plan() = std::move(step);
  prepare.mutable_plan()->set_epoch(whole.plan().epoch());
  if (whole.has_log_prob_pass()) *prepare.mutable_log_prob_pass() = std::move(entry_pass);
  return prepare;
}

double ClipFactor(const v1::AdamParams& adam, double grad_norm_squared) {
  if (adam.max_grad_norm() <= 0) return 1;
  return std::min(1.0, adam.max_grad_norm() / (std::sqrt(grad_norm_squared) + kClipEpsilon));
}

internal::v1::Apply MakeApply(const internal::v1::StepKey& key, const v1::AdamParams& adam, const RequestPlan& plan,
                              const internal::v1::Vote& vote, v1::StepResult::Outcome outcome) {
  internal::v1::Apply apply;
  *apply.mutable_key() = key;
  *apply.mutable_adam() = adam;
  if (outcome == v1::StepResult::APPLIED) {
    apply.set_clip(ClipFactor(adam, vote.grad_norm_squared()));
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
