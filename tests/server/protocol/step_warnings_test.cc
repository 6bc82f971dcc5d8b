// What is said of groups that have no gradient.
#include "server/protocol/step_warnings.h"

#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

v1::UpdateHeader Header(const std::string& loss_mode = "gpg") {
  v1::UpdateHeader header;
  header.mutable_loss()->set_loss_mode(loss_mode);
  return header;
}

v1::PromptGroup Group(const std::vector<double>& advantages) {
  v1::PromptGroup group;
  for (const double advantage : advantages) {
    v1::Rollout& rollout = *group.add_rollouts();
    rollout.set_response_tokens(PackArray(std::vector<int32_t>{1, 2}));
    rollout.set_advantage(advantage);
  }
  return group;
}

v1::PromptGroup Masked(v1::PromptGroup group) {
  for (v1::Rollout& rollout : *group.mutable_rollouts()) rollout.set_response_mask(std::string(1, '\0'));
  return group;
}

EmptyGroups Count(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups,
                  const std::vector<uint32_t>& mini_batch) {
  return CountEmptyGroups(header, groups, FindGroupsThatRun(header, groups), mini_batch);
}

TEST(StepWarningsTest, AGroupRunsIfOneOfItsRolloutsDoes) {
  const std::vector<v1::PromptGroup> groups = {Group({0, 1}), Group({0, 0}), Masked(Group({1, 1})), Group({})};
  EXPECT_EQ(FindGroupsThatRun(Header(), groups),
            (std::vector{GroupRuns::kYes, GroupRuns::kZeroFactor, GroupRuns::kNoTokens, GroupRuns::kNoTokens}));
  v1::PromptGroup last_masked = Group({0, 0});
  last_masked.mutable_rollouts(1)->set_response_mask(std::string(1, '\0'));
  EXPECT_EQ(FindGroupsThatRun(Header(), {last_masked})[0], GroupRuns::kZeroFactor) << "its first rollout has tokens";
  v1::UpdateHeader entropy = Header();
  entropy.mutable_loss()->set_entropy_coeff(0.1);
  EXPECT_EQ(FindGroupsThatRun(entropy, groups)[1], GroupRuns::kYes) << "entropy has a gradient";
}

TEST(StepWarningsTest, OnlyTheMiniBatchIsCounted) {
  const std::vector<v1::PromptGroup> groups = {Group({0, 0}), Group({1, 0}), Group({0, 0}), Masked(Group({1}))};
  EXPECT_TRUE(Count(Header(), groups, {1}).warnings.empty());
  EXPECT_EQ(Count(Header(), groups, {0, 2}).warnings,
            std::vector<std::string>{"all advantages are 0 in 2 of 2 groups: nothing was computed"});
  const EmptyGroups some = Count(Header(), groups, {3, 1, 0});
  EXPECT_EQ(some.count, 2u);
  EXPECT_EQ(some.warnings, (std::vector<std::string>{"all advantages are 0 in 1 of 3 groups: these were not computed",
                                                     "no response token has mask 1 in 1 of 3 groups: these were not "
                                                     "computed"}));
  EXPECT_EQ(Count(Header(), groups, {0, 3}).warnings.at(1),
            "no response token has mask 1 in 1 of 2 groups: nothing was computed");
}

TEST(StepWarningsTest, ReturnedLogProbsAreComputedAndMakeNoStep) {
  const std::vector<v1::PromptGroup> groups = {Group({0, 0}), Group({1, 0}), Masked(Group({1}))};
  v1::UpdateHeader header = Header();
  for (const bool log_probs : {false, true}) {
    header.set_return_log_probs(log_probs);
    EXPECT_TRUE(Count(header, groups, {0}).no_gradient);
    EXPECT_TRUE(Count(header, groups, {2, 0}).no_gradient);
    EXPECT_FALSE(Count(header, groups, {0, 1}).no_gradient);
    EXPECT_EQ(Count(header, groups, {2, 0}).count, log_probs ? 1u : 2u);
  }
  EXPECT_EQ(FindGroupsThatRun(header, groups),
            (std::vector{GroupRuns::kForLogProbs, GroupRuns::kYes, GroupRuns::kNoTokens}));
  EXPECT_EQ(
      Count(header, groups, {2, 0, 1}).warnings,
      (std::vector<std::string>{"all advantages are 0 in 1 of 3 groups: these were computed for their log-probs alone",
                                "no response token has mask 1 in 1 of 3 groups: these were not computed"}));
  header.mutable_loss()->set_entropy_coeff(0);
  EXPECT_FALSE(Count(header, groups, {0}).no_gradient) << "as without log-probs";
}

TEST(StepWarningsTest, TheFactorHasTheNameOfWhatWasSent) {
  v1::PromptGroup group = Group({1});
  group.mutable_rollouts(0)->set_rollout_is_weights(PackArray(std::vector<float>{0, 0}));
  EXPECT_EQ(Count(Header(), {group}, {0}).warnings.at(0),
            "all advantages times rollout_is_weights are 0 in 1 of 1 groups: nothing was computed");
  group.mutable_rollouts(0)->set_loss_weights(PackArray(std::vector<float>{0, 0}));
  EXPECT_EQ(Count(Header("cross_entropy"), {group}, {0}).warnings.at(0),
            "all loss_weights are 0 in 1 of 1 groups: nothing was computed");
}

TEST(StepWarningsTest, OneGroupWithImportanceWeightsNamesTheFactorOfAll) {
  v1::PromptGroup weighted = Group({1});
  weighted.mutable_rollouts(0)->set_rollout_is_weights(PackArray(std::vector<float>{0, 0}));
  for (const std::vector<uint32_t>& mini_batch : {std::vector<uint32_t>{0, 1}, {1, 0}}) {
    EXPECT_EQ(Count(Header(), {weighted, Group({0})}, mini_batch).warnings.at(0),
              "all advantages times rollout_is_weights are 0 in 2 of 2 groups: nothing was computed");
  }
}

v1::PromptGroup Rewarded(const std::string& uid, const std::vector<std::string>& samples) {
  v1::PromptGroup group;
  group.set_uid(uid);
  for (const std::string& sample : samples) {
    group.add_rollouts()->set_reward(1);
    if (!sample.empty()) group.mutable_rollouts(group.rollouts_size() - 1)->set_sample_id(sample);
  }
  return group;
}

std::vector<std::string> WarningsOfLoneRewards(const std::vector<v1::PromptGroup>& groups,
                                               const std::vector<uint32_t>& mini_batch) {
  return LoneRewardWarnings(groups, FindLoneRewards(groups), mini_batch);
}

TEST(StepWarningsTest, AStatGroupWithOneRewardIsToldOf) {
  const std::vector<v1::PromptGroup> groups = {Rewarded("a", {""}), Rewarded("b", {"", ""}), Rewarded("c", {""}),
                                               Group({1})};
  EXPECT_EQ(WarningsOfLoneRewards(groups, {3, 0, 1}),
            std::vector<std::string>{"1 stat_group has one reward: its advantage is the reward itself"});
  EXPECT_EQ(
      WarningsOfLoneRewards(groups, {0, 1, 2}),
      std::vector<std::string>{"2 stat_groups have one reward each: their advantages are the rewards themselves"});
  EXPECT_TRUE(WarningsOfLoneRewards(groups, {1, 3}).empty());
}

TEST(StepWarningsTest, RolloutsOfOneSampleAreOneRewardOfTheirStatGroup) {
  std::vector<v1::PromptGroup> groups = {Rewarded("a", {"x", "x"}), Rewarded("b", {"x"}), Group({1})};
  for (v1::PromptGroup& group : groups) group.set_stat_group("s");
  EXPECT_EQ(FindLoneRewards(groups), (std::vector<bool>{true, true, false})) << "the last has an advantage";
  EXPECT_EQ(WarningsOfLoneRewards(groups, {0, 1}).at(0),
            "1 stat_group has one reward: its advantage is the reward itself");
  for (const char* const other : {"y", ""}) {
    groups[2] = Rewarded("c", {other});
    groups[2].set_stat_group("s");
    EXPECT_EQ(FindLoneRewards(groups), std::vector<bool>(3, false)) << other;
  }
  EXPECT_EQ(FindLoneRewards({Rewarded("a", {"", "x"})}), std::vector<bool>{false});
}

TEST(StepWarningsTest, ARequestRepeatsTheFirstWarningsOfItsSteps) {
  v1::UpdateResult result;
  result.add_steps()->add_warnings("w");
  AddStepWarnings(result);
  EXPECT_EQ(std::vector<std::string>(result.warnings().begin(), result.warnings().end()),
            std::vector<std::string>{"w"});
  result.clear_warnings();
  for (int k = 0; k < 10; ++k) result.add_steps()->add_warnings("w");
  AddStepWarnings(result);
  ASSERT_EQ(result.warnings_size(), kStepWarningsMax + 1);
  EXPECT_EQ(result.warnings(0), "step 1 of 11: w");
  EXPECT_EQ(result.warnings(kStepWarningsMax), "3 more warnings stand at their steps");
}

}  // namespace
}  // namespace stemma::server
