// What a job is given for, and how long its watch waits for it.
#include "server/protocol/job_watch.h"

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

// One step of 7 seconds, whose longest phase takes 4; `passes`: log-prob passes that go before it.
RequestPlan PlanOfOneStep(uint32_t passes) {
  RequestPlan plan;
  plan.repeats = 2;
  plan.plan.add_steps();
  if (passes > 0) plan.plan.mutable_log_prob_pass();
  for (uint32_t step = 0; step < (passes > 0 ? 2 : 1); ++step) {
    v1::StepReport& report = *plan.report.add_steps();
    for (v1::PhaseSeconds* seconds : {report.mutable_seconds(), report.add_clusters()->mutable_seconds()}) {
      seconds->set_prefix_forward(1);
      seconds->set_suffix(2);
      seconds->set_prefix_backward(4);
    }
  }
  plan.report.set_log_prob_passes(passes);
  return plan;
}

TEST(JobSecondsTest, APassCountsWithTheFirstStepAlone) {
  const RequestPlan plan = PlanOfOneStep(/*passes=*/2);
  EXPECT_EQ(PrepareSeconds(plan, 0, /*payload_bytes=*/0).total, 3 * 7);
  EXPECT_EQ(PrepareSeconds(plan, 1, /*payload_bytes=*/0).total, 7);
  EXPECT_EQ(PrepareSeconds(plan, 0, /*payload_bytes=*/0).longest, 4) << "the backward of the prefix";
}

TEST(JobSecondsTest, ParametersThatTravelCountWithTheStep) {
  RequestPlan plan = PlanOfOneStep(/*passes=*/0);
  plan.report.mutable_steps(0)->set_parameters_s(5);
  EXPECT_EQ(PrepareSeconds(plan, 0, /*payload_bytes=*/0).total, 7 + 5);
}

TEST(JobSecondsTest, WeightsOfACheckpointAreReadInOnePieceForEachPass) {
  constexpr uint64_t kBytes = 3000 * uint64_t{1'000'000};  // 30 seconds
  RequestPlan alone = PlanOfOneStep(/*passes=*/0);
  alone.report.set_checkpoint_weights_bytes(kBytes);
  const JobSeconds once = LogProbSeconds(alone, /*payload_bytes=*/0);
  EXPECT_EQ(once.longest, 30);
  EXPECT_EQ(once.total, 7 + 30) << "a call of ComputeLogProb is one pass";
  RequestPlan before = PlanOfOneStep(/*passes=*/2);
  before.report.set_checkpoint_weights_bytes(kBytes);
  EXPECT_EQ(PrepareSeconds(before, 0, /*payload_bytes=*/0).total, 3 * 7 + 2 * 30);
}

TEST(JobSecondsTest, AVerificationHasTheTimeOfBothOfItsRuns) {
  RequestPlan plan = PlanOfOneStep(/*passes=*/0), dense = PlanOfOneStep(/*passes=*/1);
  dense.report.mutable_steps(1)->mutable_clusters(0)->mutable_seconds()->set_suffix(9);
  plan.dense = std::make_shared<const RequestPlan>(dense);
  const JobSeconds both = VerifySeconds(plan, /*payload_bytes=*/0);
  EXPECT_EQ(both.longest, 9);
  EXPECT_EQ(both.total, PrepareSeconds(plan, 0, 0).total + PrepareSeconds(dense, 0, 0).total);
}

TEST(JobSecondsTest, StatesAreLoadedAndSavedWithTheWeights) {
  ModelConfig model;
  model.vocab_size = 1000;
  model.hidden_size = 64;
  model.num_layers = 2;
  model.num_heads = model.num_kv_heads = 4;
  model.head_size = 16;
  model.ffn_size = 128;
  const auto parameters = static_cast<double>(model.num_parameters());
  EXPECT_DOUBLE_EQ(ExportSeconds(model).total, 8 * parameters / kBytesPerSecond) << "in the largest dtype";
  EXPECT_DOUBLE_EQ(SaveSeconds(model).total, 3 * 8 * parameters / kBytesPerSecond) << "masters and two moments";
  EXPECT_GE(LoadSeconds(model, RunDtype::kFp32).total, (4 + 4 + 8) * parameters / kBytesPerSecond);
}

TEST(JobWatchTest, AJobIsGivenAtLeastTheTimeOfItsLongestPiece) {
  JobWatch watch("reading", {.longest = 10, .total = 1}, /*floor=*/absl::Seconds(2));
  watch.Pass(absl::Seconds(kWatchMultiple * 10 - 1));
  EXPECT_EQ(watch.Problem(), "");
  watch.Moved();
  watch.Pass(absl::Seconds(1));
  EXPECT_EQ(watch.Problem().rfind("reading does not end within 3m20s", 0), 0u) << watch.Problem();
}

TEST(JobWatchTest, AJobThatMovesForEverEndsAfterSoManyFloors) {
  JobWatch watch("export x", {}, /*floor=*/absl::Seconds(10));
  for (int floor = 1; floor <= kFloorsOfJob; ++floor) {
    EXPECT_EQ(watch.Problem(), "") << floor;
    watch.Pass(absl::Seconds(9));
    watch.Moved();
    watch.Pass(absl::Seconds(1));
  }
  EXPECT_EQ(watch.Problem().rfind("export x does not end within 2m", 0), 0u) << watch.Problem();
}

}  // namespace
}  // namespace stemma::server
