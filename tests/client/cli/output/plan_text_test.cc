#include "client/cli/output/plan_text.h"

#include "client/cli/output/stage_text.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

v1::PlanReport Plan() {
  v1::PlanReport plan;
  v1::PhaseSeconds& seconds = *plan.mutable_seconds();
  seconds.set_prefix_forward(0.25);
  seconds.set_suffix(1.5);
  seconds.set_prefix_backward(0.5);
  seconds.set_apply(0.25);
  plan.mutable_rates()->set_calibrated(true);
  plan.set_num_steps(1);
  *plan.add_steps()->mutable_seconds() = seconds;
  return plan;
}

TEST(PlanTextTest, PhasesFollowEachOtherWithoutStages) {
  const Record summary = PlanSummary(Plan());
  EXPECT_EQ(summary["time"],
            "2.50 s: prefixes forward 250 ms, suffixes 1.50 s, prefixes backward 500 ms, optimizer 250 ms");
  EXPECT_FALSE(summary.contains("pipeline"));
  EXPECT_FALSE(summary.contains("ranks"));
  EXPECT_TRUE(StageSummaries(Plan()).empty());
  EXPECT_TRUE(StageRecords(Plan()).empty());
}

TEST(PlanTextTest, RanksSideBySideTakeWhatTheLastOneTakes) {
  v1::PlanReport plan = Plan();
  plan.mutable_steps(0)->add_ranks()->mutable_seconds()->set_suffix(1.5);
  plan.mutable_steps(0)->add_ranks()->mutable_seconds()->set_prefix_backward(0.5);
  plan.set_parameters_s(0.5);
  plan.mutable_steps(0)->set_parameters_s(0.5);
  EXPECT_EQ(PlanSummary(plan)["time"],
            "2.25 s; of each phase's slowest rank: prefixes forward 250 ms, suffixes 1.50 s, prefixes backward 500 ms, "
            "optimizer 250 ms, gathering parameters 500 ms");
}

// One copy of two stages is one rank of dp, of which nothing is compared.
TEST(PlanTextTest, StagesRunSideBySide) {
  v1::PlanReport plan = Plan();
  plan.set_pipeline_s(1.5);
  plan.mutable_steps(0)->set_pipeline_s(1.5);
  v1::RankReport& rank = *plan.mutable_steps(0)->add_ranks();
  rank.set_pipeline_s(1.5);
  rank.set_bubble_s(0.25);
  rank.add_stages()->set_layers(3);
  rank.add_stages()->set_idle_s(0.5);
  const Record summary = PlanSummary(plan);
  EXPECT_EQ(summary["time"],
            "1.75 s; of all stages together: prefixes forward 250 ms, suffixes 1.50 s, prefixes backward 500 ms, "
            "optimizer 250 ms");
  EXPECT_EQ(summary["pipeline"], "2 stages, 1.50 s through them, of which the busiest idles 250 ms");
  EXPECT_FALSE(summary.contains("ranks"));
  const std::vector<Record> stages = StageSummaries(plan);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0]["layers"], 3);
  EXPECT_EQ(stages[1]["idle"], "500 ms");
}

}  // namespace
}  // namespace stemma::cli
