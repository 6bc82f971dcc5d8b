// The messages of a step: each step's own numbers, the entry pass once, and the clip factor to the last digit.
#include "server/protocol/step_messages.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;

// Two steps with an entry pass; the second one's mini-batch is smaller, and nothing in it has a gradient.
RequestPlan MakePlan() {
  RequestPlan plan;
  plan.plan.mutable_log_prob_pass()->set_epoch(70);
  plan.report.add_steps()->set_peak_bytes(700);
  for (const uint32_t k : {0u, 1u}) {
    v1::StepPlan& step = *plan.plan.add_steps();
    step.set_epoch(k);
    if (k == 0) step.add_clusters();
    v1::StepReport& report = *plan.report.add_steps();
    report.set_peak_bytes(100 + k);
    report.mutable_seconds()->set_suffix(10 + k);
    report.mutable_seconds()->set_apply(20 + k);
  }
  plan.steps.push_back({.denominator = 12, .rollout_weights = {0.5, 0.25}, .total_tokens = 0});
  plan.steps.push_back({.denominator = 0.1, .rollout_weights = {1.0 / 3}, .total_tokens = 0});
  return plan;
}

internal::v1::StepKey Key(uint32_t k) {
  internal::v1::StepKey key;
  key.set_request_id("a");
  key.set_k(k);
  key.set_step(5);
  return key;
}

v1::AdamParams Adam(double max_grad_norm) {
  v1::AdamParams adam;
  adam.set_max_grad_norm(max_grad_norm);
  adam.set_learning_rate(0.75);
  return adam;
}

TEST(MakePrepareTest, EachStepCarriesTheNumbersOfItsOwnMiniBatch) {
  v1::UpdateHeader header;
  header.mutable_loss()->set_loss_mode("gspo");
  const internal::v1::Prepare first = MakePrepare(Key(0), header, MakePlan());
  EXPECT_EQ(first.key().step(), 5u);
  EXPECT_EQ(first.header().loss().loss_mode(), "gspo");
  EXPECT_EQ(first.plan().epoch(), 0u);
  EXPECT_EQ(first.denominator(), 12);
  EXPECT_THAT(first.rollout_weights(), ElementsAre(0.5, 0.25));
  EXPECT_EQ(first.predicted().suffix(), 10) << "the step's own, not the entry pass's";

  const internal::v1::Prepare second = MakePrepare(Key(1), header, MakePlan());
  EXPECT_EQ(second.key().k(), 1u);
  EXPECT_EQ(second.plan().epoch(), 1u);
  EXPECT_EQ(second.denominator(), 0.1);
  EXPECT_THAT(second.rollout_weights(), ElementsAre(1.0 / 3));
  EXPECT_EQ(second.predicted().suffix(), 11);
}

TEST(MakePrepareTest, TheEntryPassGoesWithTheFirstStepOnly) {
  RequestPlan plan = MakePlan();
  EXPECT_EQ(MakePrepare(Key(0), {}, plan).log_prob_pass().epoch(), 70u);
  EXPECT_FALSE(MakePrepare(Key(1), {}, plan).has_log_prob_pass());
  plan.plan.clear_log_prob_pass();
  EXPECT_FALSE(MakePrepare(Key(0), {}, plan).has_log_prob_pass());
}

TEST(MakePrepareTest, ThePassNamesTheWeightsOfOldAndThenOfRef) {
  v1::UpdateHeader header;
  EXPECT_TRUE(MakePrepare(Key(0), header, MakePlan()).pass_weights().empty());
  header.mutable_ref()->set_from(v1::LogProbSource::WEIGHTS);
  header.mutable_ref()->set_weights("start");
  header.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  header.mutable_old()->set_weights("policy");
  const internal::v1::Prepare first = MakePrepare(Key(0), header, MakePlan());
  ASSERT_EQ(first.pass_weights_size(), 2);
  EXPECT_EQ(first.pass_weights(0).name(), "policy");
  EXPECT_EQ(first.pass_weights(1).name(), "start");
  EXPECT_TRUE(MakePrepare(Key(1), header, MakePlan()).pass_weights().empty()) << "with the pass only";
  header.mutable_old()->set_weights("start");
  EXPECT_EQ(MakePrepare(Key(0), header, MakePlan()).pass_weights_size(), 1) << "once for both";
}

TEST(StepNeedsWorkerTest, AnEmptyStepRunsOnlyForTheEntryPass) {
  RequestPlan plan = MakePlan();
  EXPECT_TRUE(StepNeedsWorker(plan, 0));
  EXPECT_FALSE(StepNeedsWorker(plan, 1));
  plan.plan.mutable_steps(0)->clear_clusters();
  EXPECT_TRUE(StepNeedsWorker(plan, 0)) << "the entry pass is due";
  plan.plan.clear_log_prob_pass();
  EXPECT_FALSE(StepNeedsWorker(plan, 0));
}

TEST(ClipFactorTest, IsThatOfTorchWithItsEpsilon) {
  EXPECT_EQ(ClipFactor(Adam(1), 4), 1 / (2 + 1e-6));
  EXPECT_EQ(ClipFactor(Adam(0.1), 9), 0.1 / (3 + 1e-6));
  EXPECT_EQ(ClipFactor(Adam(1), 0.25), 1) << "below the limit nothing is scaled";
  EXPECT_EQ(ClipFactor(Adam(2), 4), 2 / (2 + 1e-6)) << "at the limit torch scales by a little less than 1";
  EXPECT_EQ(ClipFactor(Adam(1), 0), 1);
  EXPECT_EQ(ClipFactor(Adam(1e-9), 1e-18), 1e-9 / (1e-9 + 1e-6)) << "the epsilon bounds what a tiny norm gives";
}

TEST(ClipFactorTest, ZeroMeansNoClipping) {
  EXPECT_EQ(ClipFactor(Adam(0), 1e300), 1);
  EXPECT_EQ(ClipFactor(v1::AdamParams(), 1e300), 1);
}

TEST(MakeApplyTest, AnAppliedStepCarriesTheClipAndAnyOtherDiscards) {
  internal::v1::Vote vote;
  vote.set_grad_norm_squared(4);
  const internal::v1::Apply applied =
      MakeApply(Key(1), Adam(1), MakePlan(), DecideStep(Adam(1), vote, v1::StepResult::APPLIED));
  EXPECT_EQ(applied.key().k(), 1u);
  EXPECT_EQ(applied.adam().learning_rate(), 0.75);
  EXPECT_EQ(applied.clip(), 1 / (2 + 1e-6));
  EXPECT_EQ(applied.predicted_s(), 21);
  EXPECT_FALSE(applied.discard());
  for (const auto outcome : {v1::StepResult::SKIPPED_EMPTY, v1::StepResult::SKIPPED_NONFINITE}) {
    vote.set_grad_norm_squared(std::numeric_limits<double>::quiet_NaN());
    const internal::v1::Apply skipped = MakeApply(Key(1), Adam(1), MakePlan(), DecideStep(Adam(1), vote, outcome));
    EXPECT_TRUE(skipped.discard());
    EXPECT_EQ(skipped.clip(), 0) << "it is not looked at";
    EXPECT_EQ(skipped.key().step(), 5u);
  }
}

TEST(StepReportOfTest, TheEntryPassHasARowOfItsOwnBeforeThoseOfTheSteps) {
  RequestPlan plan = MakePlan();
  EXPECT_EQ(StepReportOf(plan, 0).peak_bytes(), 100u);
  EXPECT_EQ(StepReportOf(plan, 1).peak_bytes(), 101u);
  plan.plan.clear_log_prob_pass();
  plan.report.mutable_steps()->DeleteSubrange(0, 1);
  EXPECT_EQ(StepReportOf(plan, 0).peak_bytes(), 100u);
}

}  // namespace
}  // namespace stemma::server
