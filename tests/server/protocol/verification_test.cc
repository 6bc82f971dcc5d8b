// What is taken of the ranks that verify, and what is said of it. Whole verifications: scenarios/verifications.txt, and
// tests/worker/engine/verification_test.cc.
#include "server/protocol/verification.h"

#include <cmath>
#include <limits>

#include "common/base/arrays.h"
#include "common/base/error.h"
#include "common/base/mesh.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const TrainingRequest> ThreeRollouts() {
  auto request = std::make_shared<TrainingRequest>();
  request->kind = TrainingRequest::Kind::kVerify;
  request->update.mutable_loss()->set_loss_mode("gpg");
  v1::PromptGroup& group = request->groups.emplace_back();
  group.set_uid("g");
  for (const double advantage : {1.0, -1.0, 0.0}) {  // the last one is not run
    v1::Rollout& rollout = *group.add_rollouts();
    rollout.set_rollout_id(std::to_string(group.rollouts_size()));
    rollout.set_response_tokens(PackArray<int32_t>({7, 8}));
    rollout.set_advantage(advantage);
  }
  return request;
}

v1::GroupResult ResultOf(const std::string& rollout, const std::vector<float>& log_probs) {
  v1::GroupResult result;
  result.set_uid("g");
  result.set_dtype(v1::FLOAT32);
  v1::RolloutResult& of = *result.add_rollouts();
  of.set_rollout_id(rollout);
  of.set_log_probs(PackArray<float>(log_probs));
  return result;
}

TEST(LogProbErrorsTest, TheRunsArePairedByRolloutInWhateverOrderTheyCome) {
  LogProbErrors errors(ThreeRollouts());
  EXPECT_TRUE(errors.Add(ResultOf("1", {-1, -2}), /*dense=*/false).ok());
  EXPECT_TRUE(errors.Add(ResultOf("2", {-3, -3}), /*dense=*/true).ok());
  EXPECT_EQ(errors.tokens(), 0u);
  EXPECT_THAT(errors.CheckAllCame().message(), HasSubstr("the log-probs of 2 rollouts"));
  EXPECT_TRUE(errors.Add(ResultOf("1", {-1.5F, -2}), /*dense=*/true).ok());
  EXPECT_TRUE(errors.Add(ResultOf("2", {-3, -2}), /*dense=*/false).ok());
  EXPECT_TRUE(errors.CheckAllCame().ok());
  EXPECT_EQ(errors.max(), 1);
  EXPECT_EQ(errors.mean(), 1.5 / 4);
  EXPECT_EQ(errors.tokens(), 4u);
}

TEST(LogProbErrorsTest, ALogProbThatIsNotANumberStaysTheLargestError) {
  LogProbErrors errors(ThreeRollouts());
  for (const bool dense : {false, true}) {
    EXPECT_TRUE(errors.Add(ResultOf("1", {dense ? NAN : -1.0F, -2}), dense).ok());
    EXPECT_TRUE(errors.Add(ResultOf("2", {-1, dense ? -9.0F : -2.0F}), dense).ok());
  }
  EXPECT_TRUE(std::isnan(errors.max()));
}

TEST(LogProbErrorsTest, WhatOneRunLacksIsMissed) {
  LogProbErrors errors(ThreeRollouts());
  for (const bool dense : {false, true}) {
    EXPECT_TRUE(errors.Add(ResultOf("1", {-1, -2}), dense).ok());
    EXPECT_TRUE(errors.Add(ResultOf("2", dense ? std::vector<float>{} : std::vector<float>{-1, -2}), dense).ok());
  }
  EXPECT_THAT(errors.CheckAllCame().message(), HasSubstr("the log-probs of 1 rollouts"));
  EXPECT_FALSE(errors.Add(ResultOf("1", {-1, -2}), /*dense=*/false).ok()) << "a second time";
}

class VerificationTest : public ::testing::Test {
 protected:
  VerificationTest() {
    for (const std::shared_ptr<RequestPlan>& plan : {plan_, dense_}) {
      plan->plan.add_steps();
      plan->report.add_steps();
      plan->steps.emplace_back();
    }
    plan_->dense = dense_;
  }
  Verification Of(const MeshSizes& sizes) const { return Verification(request_, plan_, model_, MakeMesh(sizes)); }

  static internal::v1::VerifyDone Done(const std::vector<std::pair<std::string, double>>& errors, bool yes = true) {
    internal::v1::VerifyDone done;
    for (internal::v1::Vote* vote : {done.mutable_reuse(), done.mutable_dense()}) {
      vote->set_yes(yes);
      vote->set_grad_norm_squared(1);
    }
    for (const auto& [name, squared] : errors) {
      internal::v1::GradientError& error = *done.add_gradients();
      error.set_name(name);
      error.set_error_squared(squared);
      error.set_dense_squared(4 * squared);
    }
    return done;
  }
  static void AddResults(Verification& verification) {
    for (const bool dense : {false, true}) {
      for (const char* rollout : {"1", "2"}) {
        internal::v1::ResultChunk chunk;
        chunk.set_dense(dense);
        *chunk.mutable_group() = ResultOf(rollout, {-1, -2});
        EXPECT_TRUE(verification.AddResult(chunk).ok());
      }
    }
  }

  const ModelConfig model_ = testing::BenchModel();
  const std::shared_ptr<const TrainingRequest> request_ = ThreeRollouts();
  const std::shared_ptr<RequestPlan> plan_ = std::make_shared<RequestPlan>(), dense_ = std::make_shared<RequestPlan>();
};

TEST_F(VerificationTest, ElementsOfAParameterAddUpOverTheRanksThatCountThem) {
  Verification verification = Of({.dp = 2});
  AddResults(verification);
  internal::v1::VerifyDone first = Done({{"a", 9}, {"b", 1}}), second = Done({{"a", 7}, {"c", 25}});
  first.set_reuse_s(2);
  second.set_reuse_s(3);
  first.set_dense_s(9);
  ASSERT_TRUE(verification.Add(0, first).ok());
  ASSERT_TRUE(verification.Add(1, second).ok());
  const auto answer = verification.Answer();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_DOUBLE_EQ(answer->error_norm(), std::sqrt(42.0));
  EXPECT_DOUBLE_EQ(answer->gradient_norm(), 2 * std::sqrt(42.0));
  ASSERT_EQ(answer->parameters_size(), 3);
  EXPECT_EQ(answer->parameters(0).name(), "c") << "the largest error comes first";
  EXPECT_EQ(answer->parameters(1).name(), "a");
  EXPECT_EQ(answer->parameters(1).error_norm(), 4);
  EXPECT_EQ(answer->parameters(1).gradient_norm(), 8);
  EXPECT_EQ(answer->reuse().metrics().at("perf/actor/time_per_step"), 3) << "the slowest rank's";
  EXPECT_EQ(answer->dense().metrics().at("perf/actor/time_per_step"), 9);
}

TEST_F(VerificationTest, WhatCannotBeIsNotTaken) {
  Verification verification = Of({.tp = 2});
  EXPECT_THAT(verification.Add(0, Done({{"a", 1}, {"a", 1}})).message(), HasSubstr("has a twice"));
  EXPECT_THAT(verification.Add(0, Done({{"a", 1}}, /*yes=*/false)).message(), HasSubstr("a run has none"));
  std::vector<std::pair<std::string, double>> many;
  for (int i = 0; i < 10000; ++i) many.emplace_back("p" + std::to_string(i), 1);
  EXPECT_THAT(verification.Add(0, Done(many)).message(), HasSubstr("has 10000 names"));
  internal::v1::VerifyDone speaks = Done({});
  speaks.mutable_dense()->mutable_sums()->set_policy_loss(1);
  EXPECT_TRUE(verification.Add(0, speaks).ok());
  EXPECT_THAT(verification.Add(1, speaks).message(), HasSubstr("vote.sums.policy_loss")) << "rank 0 speaks for it";
  internal::v1::VerifyDone cancelled = Done({}, /*yes=*/false);
  cancelled.mutable_reuse()->set_no_reason(internal::v1::CANCELLED);
  EXPECT_THAT(verification.Add(1, cancelled).message(), HasSubstr("nobody cancelled"));
}

// The first reason that is a rank's own, of the run that lacks a gradient.
TEST_F(VerificationTest, ARunThatRanksCouldNotMakeIsTheAnswer) {
  Verification verification = Of({.dp = 2});
  internal::v1::VerifyDone other = Done({}, /*yes=*/false), own = Done({});
  other.mutable_reuse()->set_yes(true);
  other.mutable_dense()->set_no_reason(internal::v1::PEER);
  own.mutable_dense()->set_yes(false);
  own.mutable_dense()->set_no_reason(internal::v1::OUT_OF_MEMORY);
  own.mutable_dense()->set_message("of the kept gradients");
  ASSERT_TRUE(verification.Add(0, other).ok());
  ASSERT_TRUE(verification.Add(1, own).ok());
  EXPECT_TRUE(HasReason(verification.Answer().status(), Reason::kGroupTooLarge));
  EXPECT_THAT(verification.Answer().status().message(), HasSubstr("of the kept gradients"));
}

}  // namespace
}  // namespace stemma::server
