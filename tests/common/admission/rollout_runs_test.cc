// Which rollouts are computed, and which steps have a gradient.
#include <string>
#include <vector>

#include "common/admission/normalization.h"
#include "common/base/arrays.h"
#include "gtest/gtest.h"
#include "tests/common/admission/made_groups.h"

namespace stemma {
namespace {

v1::UpdateHeader Header(const std::string& mode) {
  v1::UpdateHeader header;
  *header.mutable_loss() = Loss(mode, "token-mean");
  return header;
}

v1::Rollout WithAdvantage(double advantage, const std::vector<bool>& mask = {true, true}) {
  v1::Rollout rollout = MakeRollout(mask);
  rollout.set_advantage(advantage);
  return rollout;
}

TEST(RolloutRunsTest, AnEmptyOrFullyMaskedRolloutNeverRuns) {
  v1::UpdateHeader header = Header("gpg");
  header.set_return_log_probs(true);
  header.mutable_loss()->set_entropy_coeff(1);
  EXPECT_FALSE(RolloutRuns(header, WithAdvantage(1, {})));
  EXPECT_FALSE(RolloutRuns(header, WithAdvantage(1, {false, false})));
  EXPECT_TRUE(RolloutRuns(header, WithAdvantage(1, {false, true})));
}

TEST(RolloutRunsTest, WithoutAdvantageItRunsOnlyForAnotherTermOrItsLogProbs) {
  for (const std::string mode : {"vanilla", "gspo", "cispo", "importance_sampling", "gpg"}) {
    v1::UpdateHeader header = Header(mode);
    EXPECT_FALSE(RolloutRuns(header, WithAdvantage(0))) << mode;
    EXPECT_TRUE(RolloutRuns(header, WithAdvantage(-0.1))) << mode;
    header.set_return_log_probs(true);
    EXPECT_TRUE(RolloutRuns(header, WithAdvantage(0))) << mode;
    header = Header(mode);
    header.mutable_loss()->set_kl_loss_coef(0.1);
    EXPECT_TRUE(RolloutRuns(header, WithAdvantage(0))) << mode;
    header = Header(mode);
    header.mutable_loss()->set_entropy_coeff(-0.1);
    EXPECT_TRUE(RolloutRuns(header, WithAdvantage(0))) << mode;
    header.mutable_loss()->set_entropy_coeff(0);
    EXPECT_TRUE(RolloutRuns(header, WithAdvantage(0))) << mode << ": its entropy is to be reported";
    header = Header(mode);
    header.mutable_loss()->set_kl_loss_coef(0);
    EXPECT_TRUE(RolloutRuns(header, WithAdvantage(0))) << mode << ": its KL is to be reported";
  }
}

TEST(RolloutRunsTest, LogProbsAloneAreNoLoss) {
  for (const std::string mode : {"vanilla", "gpg"}) {
    v1::UpdateHeader header = Header(mode);
    header.set_return_log_probs(true);
    EXPECT_FALSE(HasLoss(header.loss(), WithAdvantage(0))) << mode;
    EXPECT_TRUE(HasLoss(header.loss(), WithAdvantage(0.1))) << mode;
    header.mutable_loss()->set_kl_loss_coef(0);
    EXPECT_TRUE(HasLoss(header.loss(), WithAdvantage(0))) << mode << ": its KL is to be reported";
    EXPECT_FALSE(HasLoss(header.loss(), WithAdvantage(1, {false}))) << mode;
  }
}

TEST(RolloutRunsTest, OnlyUnmaskedTokensCount) {
  v1::Rollout rollout = MakeRollout({false, true});
  rollout.set_token_advantages(PackArray(std::vector<float>{1, 0}));
  EXPECT_FALSE(RolloutRuns(Header("gpg"), rollout));
  rollout.set_token_advantages(PackArray(std::vector<float>{0, 1}));
  EXPECT_TRUE(RolloutRuns(Header("gpg"), rollout));
}

TEST(RolloutRunsTest, AnImportanceWeightOfZeroTakesATokenOut) {
  v1::Rollout rollout = WithAdvantage(1);
  rollout.set_rollout_is_weights(PackArray(std::vector<float>{0, 0}));
  EXPECT_FALSE(RolloutRuns(Header("vanilla"), rollout));
  rollout.set_rollout_is_weights(PackArray(std::vector<float>{0, 0.5}));
  EXPECT_TRUE(RolloutRuns(Header("vanilla"), rollout));
}

TEST(RolloutRunsTest, CrossEntropyLooksAtItsLossWeights) {
  v1::Rollout rollout = MakeRollout({true, true});
  rollout.set_loss_weights(PackArray(std::vector<float>{0, 0}));
  EXPECT_FALSE(RolloutRuns(Header("cross_entropy"), rollout));
  rollout.set_loss_weights(PackArray(std::vector<float>{0, -1}));
  EXPECT_TRUE(RolloutRuns(Header("cross_entropy"), rollout));
}

}  // namespace
}  // namespace stemma
