#include "common/cost/plan_seconds.h"

#include <algorithm>

namespace stemma {
namespace {

double WithoutOptimizer(const v1::PhaseSeconds& seconds) {
  return seconds.prefix_forward() + seconds.suffix() + seconds.prefix_backward();
}

}  // namespace

double TotalSeconds(const v1::PhaseSeconds& seconds) { return WithoutOptimizer(seconds) + seconds.apply(); }

double PhasesSeconds(const v1::StepReport& step) {
  if (step.pipeline_s() > 0) return step.pipeline_s();
  if (step.ranks().empty()) return WithoutOptimizer(step.seconds());
  double slowest_s = 0;
  for (const v1::RankReport& rank : step.ranks()) {
    slowest_s = std::max(slowest_s, WithoutOptimizer(rank.seconds()) + rank.exchange_s());
  }
  return slowest_s;
}

double SecondsOfStep(const v1::StepReport& step) {
  return PhasesSeconds(step) + step.parameters_s() + step.seconds().apply();
}

double PlanSeconds(const v1::PlanReport& plan) {
  // A report lists the pass before the steps once, and the steps of one epoch where all epochs have the same.
  const int first = plan.log_prob_passes() > 0 ? 1 : 0, listed = std::max(plan.steps_size() - first, 0);
  double pass_s = 0, steps_s = 0;
  for (int i = 0; i < plan.steps_size(); ++i) (i < first ? pass_s : steps_s) += SecondsOfStep(plan.steps(i));
  const double repeats = listed > 0 ? static_cast<double>(plan.num_steps()) / listed : 0;
  return plan.log_prob_passes() * pass_s + repeats * steps_s;
}

}  // namespace stemma
