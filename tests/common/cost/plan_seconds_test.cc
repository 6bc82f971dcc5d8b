// Seconds of a plan's report, by hand. That they are those of programs that run is simulation_test's.
#include "common/cost/plan_seconds.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

v1::PhaseSeconds Phases(double prefix_forward, double suffix, double prefix_backward, double apply = 0) {
  v1::PhaseSeconds seconds;
  seconds.set_prefix_forward(prefix_forward);
  seconds.set_suffix(suffix);
  seconds.set_prefix_backward(prefix_backward);
  seconds.set_apply(apply);
  return seconds;
}

// One rank has the long prompts and another one the many suffixes.
v1::StepReport TwoRanks() {
  v1::StepReport step;
  *step.mutable_seconds() = Phases(4, 8, 6, 0.5);
  *step.add_ranks()->mutable_seconds() = Phases(4, 1, 6);
  *step.add_ranks()->mutable_seconds() = Phases(1, 8, 1);
  step.mutable_ranks(1)->set_exchange_s(2);
  return step;
}

TEST(PlanSecondsTest, AStepTakesWhatItsLastRankDoesAndNotEachPhasesSlowest) {
  EXPECT_EQ(PhasesSeconds(TwoRanks()), 12) << "not 4 + 8 + 6";
  EXPECT_EQ(SecondsOfStep(TwoRanks()), 12.5);
  v1::StepReport alone;
  *alone.mutable_seconds() = Phases(1, 2, 3, 0.5);
  EXPECT_EQ(SecondsOfStep(alone), 6.5);
  EXPECT_EQ(TotalSeconds(alone.seconds()), 6.5);
}

TEST(PlanSecondsTest, AStepOfStagesTakesWhatItsPipelineDoes) {
  v1::StepReport step = TwoRanks();
  step.set_pipeline_s(9);
  step.set_parameters_s(0.25);
  EXPECT_EQ(PhasesSeconds(step), 9);
  EXPECT_EQ(SecondsOfStep(step), 9.75);
}

TEST(PlanSecondsTest, AReportListsAPassOnceAndTheStepsOfOneEpochForAll) {
  v1::PlanReport plan;
  EXPECT_EQ(PlanSeconds(plan), 0);
  *plan.add_steps()->mutable_seconds() = Phases(1, 1, 0);
  *plan.add_steps() = TwoRanks();
  *plan.add_steps()->mutable_seconds() = Phases(1, 1, 1);
  plan.set_num_steps(6);
  plan.set_log_prob_passes(2);
  EXPECT_EQ(PlanSeconds(plan), 2 * 2 + 3 * (12.5 + 3));
  plan.set_log_prob_passes(0);
  plan.set_num_steps(3);
  EXPECT_EQ(PlanSeconds(plan), 2 + 12.5 + 3);
}

}  // namespace
}  // namespace stemma
