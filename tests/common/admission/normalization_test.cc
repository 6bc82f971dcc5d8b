// Advantages, denominators and what runs, with numbers worked out by hand.
#include "common/admission/normalization.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "common/base/error.h"
#include "common/trace/sample_tokens.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/admission/made_groups.h"

namespace stemma {
namespace {

absl::StatusOr<StepNormalization> NormalizeStep(const v1::LossConfig& loss, const std::vector<v1::PromptGroup>& groups,
                                                std::span<const uint32_t> mini_batch) {
  return StepNormalizer(loss, groups).Normalize(mini_batch);
}

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --------------------------------------------------------------------------------------------------------- advantages

std::vector<double> Advantages(const v1::PromptGroup& group) {
  std::vector<double> values;
  for (const v1::Rollout& rollout : group.rollouts()) values.push_back(rollout.advantage());
  return values;
}

TEST(FillAdvantagesTest, TheUnbiasedDeviationOfTheStatGroupNormalizes) {
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(1), WithReward(0), WithReward(0), WithReward(1)})};
  ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean"), RunNumbers(), groups).ok());
  const double expected = 0.5 / (std::sqrt(1.0 / 3) + 1e-6);
  EXPECT_THAT(Advantages(groups[0]), ElementsAre(expected, -expected, -expected, expected));
}

TEST(FillAdvantagesTest, WithoutStdOnlyTheMeanIsTakenOff) {
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(3), WithReward(0), WithReward(0)})};
  ASSERT_TRUE(FillAdvantages(Loss("gpg", "token-mean", /*normalize_std=*/false), RunNumbers(), groups).ok());
  EXPECT_THAT(Advantages(groups[0]), ElementsAre(2, -1, -1));
}

TEST(FillAdvantagesTest, OneRolloutAloneHasMeanZeroAndDeviationOne) {
  for (const bool normalize_std : {true, false}) {
    std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(0.7)})};
    ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean", normalize_std), RunNumbers(), groups).ok());
    EXPECT_EQ(groups[0].rollouts(0).advantage(), normalize_std ? 0.7 / (1 + 1e-6) : 0.7);
  }
}

// Who is at the mean has no gradient and is not run, whatever the others' order.
TEST(FillAdvantagesTest, ARewardAtTheMeanGivesExactlyZeroInEveryOrder) {
  const uint64_t seed = 20261128;
  std::mt19937_64 random(seed);
  int at_the_mean = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<double> rewards(2 + random() % 15);
    for (double& reward : rewards) reward = static_cast<double>(random() % 3) / 2 + (i % 2 == 0 ? 0 : 1e9);
    const double sum = std::accumulate(rewards.begin(), rewards.end(), 0.0);  // exact: halves below 2^53
    const auto count = static_cast<double>(rewards.size());
    std::vector<v1::Rollout> rollouts;
    for (const double reward : rewards) rollouts.push_back(WithReward(reward));
    std::vector<v1::PromptGroup> groups = {MakeGroup("a", rollouts)};
    ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean", i % 4 < 2), RunNumbers(), groups).ok());
    for (size_t r = 0; r < rewards.size(); ++r) {
      const bool is_mean = count * rewards[r] == sum;
      at_the_mean += is_mean ? 1 : 0;
      EXPECT_EQ(groups[0].rollouts(static_cast<int>(r)).advantage() == 0, is_mean)
          << "seed " << seed << " case " << i << " rollout " << r << " of " << rewards.size() << ": " << rewards[r];
    }
  }
  EXPECT_GT(at_the_mean, 1000);
}

// The deviation is of what the rewards differ in: 1e9 and 1e9 + 1 are as far apart as 0 and 1.
TEST(FillAdvantagesTest, WhatAllRewardsHaveInCommonCostsNoDigits) {
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(0), WithReward(1), WithReward(1)}),
                                         MakeGroup("b", {WithReward(1e9), WithReward(1e9 + 1), WithReward(1e9 + 1)})};
  ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean"), RunNumbers(), groups).ok());
  EXPECT_EQ(Advantages(groups[0]), Advantages(groups[1]));
}

TEST(FillAdvantagesTest, EqualRewardsGiveExactlyZero) {
  for (const bool normalize_std : {true, false}) {
    std::vector<v1::PromptGroup> groups = {MakeGroup("a", std::vector<v1::Rollout>(6, WithReward(0.1)))};
    ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean", normalize_std), RunNumbers(), groups).ok());
    EXPECT_THAT(Advantages(groups[0]), ::testing::Each(0));
  }
}

TEST(FillAdvantagesTest, AStatGroupSpansPromptGroupsAndEachUidIsItsOwnOtherwise) {
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(1)}), MakeGroup("b", {WithReward(3)}),
                                         MakeGroup("c", {WithReward(10), WithReward(20)})};
  groups[0].set_stat_group("s");
  groups[1].set_stat_group("s");
  ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean", /*normalize_std=*/false), RunNumbers(), groups).ok());
  EXPECT_THAT(Advantages(groups[0]), ElementsAre(-1));
  EXPECT_THAT(Advantages(groups[1]), ElementsAre(1));
  EXPECT_THAT(Advantages(groups[2]), ElementsAre(-5, 5));
}

TEST(FillAdvantagesTest, WhatIsSentIsKeptAndCountsInNoMean) {
  v1::Rollout one_number = WithReward(100), array = WithReward(100);
  one_number.set_advantage(-7);
  array.set_token_advantages(PackArray(std::vector<float>{2.5f}));
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {one_number, array, WithReward(1), WithReward(2)})};
  ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean", /*normalize_std=*/false), RunNumbers(), groups).ok());
  EXPECT_EQ(groups[0].rollouts(0).advantage(), -7);
  EXPECT_EQ(FloatArray(groups[0].rollouts(1).token_advantages())[0], 2.5f);
  EXPECT_EQ(groups[0].rollouts(2).advantage(), -0.5);
  EXPECT_EQ(groups[0].rollouts(3).advantage(), 0.5);
}

v1::Rollout PartOf(const std::string& sample_id, double reward) {
  v1::Rollout rollout = WithReward(reward);
  rollout.set_sample_id(sample_id);
  return rollout;
}

// Trajectories of 3, 1 and 1 turns, each turn a group of its own, with rewards 1, 0, 0.
TEST(FillAdvantagesTest, ASampleIsRewardedOnceHoweverManyRolloutsItHas) {
  for (const bool normalize_std : {true, false}) {
    std::vector<v1::PromptGroup> groups;
    for (const std::string sample : {"a", "b", "a", "a", "c"}) {
      groups.push_back(MakeGroup(absl::StrCat("g", groups.size()), {PartOf(sample, sample == "a" ? 1 : 0)}));
      groups.back().set_stat_group("question");
    }
    ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean", normalize_std), RunNumbers(), groups).ok());
    const double divisor = normalize_std ? std::sqrt(1.0 / 3) + 1e-6 : 1;
    for (const size_t turn : {0, 2, 3}) EXPECT_DOUBLE_EQ(Advantages(groups[turn])[0], 2.0 / 3 / divisor);
    for (const size_t turn : {1, 4}) EXPECT_DOUBLE_EQ(Advantages(groups[turn])[0], -1.0 / 3 / divisor);
  }
}

TEST(FillAdvantagesTest, ASampleAloneIsOneRewardAndAnIdCountsInEachStatGroup) {
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {PartOf("s", 0.5), PartOf("s", 0.5)}),
                                         MakeGroup("b", {PartOf("s", 0.5), WithReward(-1.5), PartOf("s", 0.5)})};
  ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean", /*normalize_std=*/false), RunNumbers(), groups).ok());
  EXPECT_THAT(Advantages(groups[0]), ElementsAre(0.5, 0.5));
  EXPECT_THAT(Advantages(groups[1]), ElementsAre(1, -1, 1));
}

TEST(FillAdvantagesTest, TwoRewardsOfOneSampleAreRefusedWithBoth) {
  for (const bool in_one_stat_group : {true, false}) {  // turns may be groups of their own, which none ties together
    std::vector groups = {MakeGroup("a", {WithReward(7), PartOf("t", 1)}), MakeGroup("b", {PartOf("t", 0.25)})};
    for (v1::PromptGroup& group : groups) group.set_stat_group(in_one_stat_group ? "question" : group.uid());
    const absl::Status status = FillAdvantages(Loss("vanilla", "token-mean"), RunNumbers(), groups);
    ASSERT_EQ(ErrorReason(status), "INVALID_REQUEST") << status;
    const ErrorDetails details = GetErrorDetails(status);
    EXPECT_EQ(details.uid, "b");
    EXPECT_EQ(details.violations.at(0).field, "groups[1].rollouts[0].reward");
    EXPECT_EQ(details.violations.at(0).description,
              "is 0.25, but 1 in groups[0].rollouts[1] of the same sample_id t, one sample in the whole request: "
              "send one reward, or advantages, or two ids");
  }
}

TEST(FillAdvantagesTest, NeitherAdvantageNorRewardIsAnErrorThatNamesTheRollout) {
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(1)}), MakeGroup("b", {MakeRollout({true})})};
  const absl::Status status = FillAdvantages(Loss("vanilla", "token-mean"), RunNumbers(), groups);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("groups[1].rollouts[0]"));
}

TEST(FillAdvantagesTest, RewardsWhoseVarianceOverflowsAreNamed) {
  for (const bool normalize_std : {true, false}) {
    std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(1), WithReward(2)}),
                                           MakeGroup("b", {WithReward(1e200), WithReward(0), WithReward(-1e200)})};
    const absl::Status status = FillAdvantages(Loss("vanilla", "token-mean", normalize_std), RunNumbers(), groups);
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST");
    const ErrorDetails details = GetErrorDetails(status);
    EXPECT_EQ(details.uid, "b");
    ASSERT_EQ(details.violations.size(), 2u);
    EXPECT_EQ(details.violations[0].field, "groups[1].rollouts[2].reward");
    EXPECT_THAT(details.violations[0].description, HasSubstr("is -1e+200: "));
    EXPECT_EQ(details.violations[1].field, "groups[1].rollouts[0].reward");
  }
}

TEST(FillAdvantagesTest, EqualRewardsOfAnySizeGiveExactlyZero) {
  std::vector<v1::PromptGroup> groups = {
      MakeGroup("a", {WithReward(1.7e308), WithReward(1.7e308), WithReward(1.7e308)})};
  ASSERT_TRUE(FillAdvantages(Loss("vanilla", "token-mean"), NumbersOfRun(RunDtype::kFp64), groups).ok());
  EXPECT_THAT(Advantages(groups[0]), ElementsAre(0, 0, 0));
}

double AnyMagnitude(std::mt19937_64& random) {
  const double exponent = std::uniform_real_distribution<double>(-300, 308)(random);
  const double sign = random() % 2 == 0 ? 1 : -1;
  return random() % 8 == 0 ? 0 : sign * std::pow(10, exponent);
}

// All advantages of a group that was taken are finite in the run's dtype; not all are 0 unless its rewards are equal,
// or differ by so little that the formula's 1e-6 outweighs them.
void CheckFilled(const v1::PromptGroup& group, bool normalize_std, const RunNumbers& numbers) {
  double low = group.rollouts(0).reward(), high = low, largest = 0;
  for (const v1::Rollout& rollout : group.rollouts()) {
    ASSERT_LE(std::abs(rollout.advantage()), numbers.largest);
    low = std::min(low, rollout.reward());
    high = std::max(high, rollout.reward());
    largest = std::max(largest, std::abs(rollout.advantage()));
  }
  if (high - low <= 1e-3) return;
  EXPECT_GT(largest, normalize_std ? 0.1 : 1e-4) << low << " to " << high;
}

TEST(FillAdvantagesTest, RewardsOfRandomMagnitudesGiveUsefulAdvantagesOrAnError) {
  const uint64_t seed = 20261121;
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i);
    const RunNumbers numbers = NumbersOfRun(random() % 2 == 0 ? RunDtype::kFp32 : RunDtype::kFp64);
    const bool normalize_std = random() % 2 == 0;
    std::vector<v1::Rollout> rollouts(1 + random() % 5);
    for (v1::Rollout& rollout : rollouts) rollout = WithReward(AnyMagnitude(random));
    std::vector<v1::PromptGroup> groups = {MakeGroup("a", rollouts)};
    const absl::Status status = FillAdvantages(Loss("vanilla", "token-mean", normalize_std), numbers, groups);
    refused += !status.ok();
    if (!status.ok()) {
      EXPECT_THAT(GetErrorDetails(status).field, HasSubstr("groups[0].rollouts["));
      continue;
    }
    CheckFilled(groups[0], normalize_std, numbers);
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 19000);
}

TEST(FillAdvantagesTest, CrossEntropyNeedsNone) {
  std::vector<v1::PromptGroup> groups = {MakeGroup("a", {WithReward(1), MakeRollout({true})})};
  ASSERT_TRUE(FillAdvantages(Loss("cross_entropy", "token-mean"), RunNumbers(), groups).ok());
  EXPECT_FALSE(groups[0].rollouts(0).has_advantage());
}

// -------------------------------------------------------------------------------------------------------- denominators

// Group a: 2 of 3 tokens, fully masked, empty. Group b: 4 of 4 (no mask sent), 1 of 2.
std::vector<v1::PromptGroup> RaggedGroups() {
  v1::Rollout unmasked = MakeRollout({true, true, true, true});
  unmasked.clear_response_mask();
  return {MakeGroup("a", {MakeRollout({true, false, true}), MakeRollout({false, false}), MakeRollout({})}),
          MakeGroup("b", {unmasked, MakeRollout({false, true})})};
}

StepNormalization Normalize(const std::string& agg_mode, const std::vector<v1::PromptGroup>& groups,
                            const std::vector<uint32_t>& mini_batch) {
  absl::StatusOr<StepNormalization> step = NormalizeStep(Loss("gpg", agg_mode), groups, mini_batch);
  EXPECT_TRUE(step.ok()) << step.status();
  return step.value_or(StepNormalization{});
}

TEST(NormalizeStepTest, EachAggregationCountsMaskedAndEmptyRolloutsAsItShould) {
  const std::vector<std::pair<std::string, double>> expected = {
      {"token-mean", 7},          {"token-sum", 1},   {"seq-mean-token-sum", 5}, {"seq-mean-token-sum-norm", 5},
      {"seq-mean-token-mean", 5}, {"prompt-mean", 2},
  };
  for (const auto& [mode, denominator] : expected) {
    const StepNormalization step = Normalize(mode, RaggedGroups(), {0, 1});
    EXPECT_EQ(step.denominator, denominator) << mode;
    EXPECT_EQ(step.num_loss_tokens, 7) << mode;
  }
}

TEST(NormalizeStepTest, OnlyTheMiniBatchIsCounted) {
  EXPECT_EQ(Normalize("token-mean", RaggedGroups(), {1}).denominator, 5);
  EXPECT_EQ(Normalize("seq-mean-token-sum", RaggedGroups(), {0}).denominator, 3);
  EXPECT_EQ(Normalize("prompt-mean", RaggedGroups(), {1}).denominator, 1);
}

TEST(NormalizeStepTest, PromptMeanAveragesOverTheStatGroupInTheOrderOfTheMiniBatch) {
  std::vector<v1::PromptGroup> groups = RaggedGroups();
  EXPECT_THAT(Normalize("prompt-mean", groups, {1, 0}).rollout_weights,
              ElementsAre(1.0 / 5, 1.0 / 5, 1.0 / 2, 1.0 / 2, 1.0 / 2));
  groups[0].set_stat_group("s");
  groups[1].set_stat_group("s");
  const StepNormalization merged = Normalize("prompt-mean", groups, {0, 1});
  EXPECT_EQ(merged.denominator, 1);
  EXPECT_THAT(merged.rollout_weights, Each(1.0 / 7));
  EXPECT_THAT(Normalize("token-mean", groups, {0, 1}).rollout_weights, ElementsAre(1));
}

TEST(NormalizeStepTest, AFullyMaskedGroupCountsWithoutWeight) {
  const std::vector<v1::PromptGroup> groups = {MakeGroup("a", {MakeRollout({false})}),
                                               MakeGroup("b", {MakeRollout({true})})};
  const StepNormalization step = Normalize("prompt-mean", groups, {0, 1});
  EXPECT_EQ(step.denominator, 2);
  EXPECT_THAT(step.rollout_weights, ElementsAre(0, 1));
  EXPECT_EQ(Normalize("token-mean", groups, {0}).denominator, 0);
}

TEST(NormalizeStepTest, RolloutsThatShareASampleIdAreOneSequence) {
  std::vector<v1::PromptGroup> groups = RaggedGroups();
  groups[0].mutable_rollouts(0)->set_sample_id("x");
  groups[1].mutable_rollouts(1)->set_sample_id("x");
  for (const std::string mode : {"seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"}) {
    EXPECT_EQ(Normalize(mode, groups, {0, 1}).denominator, 4) << mode;
  }
  EXPECT_EQ(Normalize("token-mean", groups, {0, 1}).denominator, 7);
  const std::vector<double> weights = Normalize("seq-mean-token-mean", groups, {0, 1}).rollout_weights;
  ASSERT_EQ(weights.size(), 5U);
  EXPECT_EQ(weights[0], 1.0 / 3);
  EXPECT_EQ(weights[4], 1.0 / 3);
  EXPECT_EQ(weights[3], 1.0 / 4);
  EXPECT_THAT(Normalize("seq-mean-token-sum", groups, {0, 1}).rollout_weights, ElementsAre(1));
}

TEST(NormalizeStepTest, ASampleOrStatGroupInTwoMiniBatchesIsRefused) {
  std::vector<v1::PromptGroup> groups = RaggedGroups();
  groups[0].mutable_rollouts(0)->set_sample_id("x");
  groups[1].mutable_rollouts(1)->set_sample_id("x");
  groups[0].set_stat_group("s");
  groups[1].set_stat_group("s");
  for (const std::string mode : {"seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean"}) {
    const absl::StatusOr<StepNormalization> step = NormalizeStep(Loss("gpg", mode), groups, std::vector<uint32_t>{0});
    EXPECT_EQ(step.status().code(), absl::StatusCode::kFailedPrecondition) << mode;
    EXPECT_EQ(ErrorReason(step.status()), "UNSUPPORTED") << mode;
  }
  EXPECT_TRUE(NormalizeStep(Loss("gpg", "token-mean"), groups, std::vector<uint32_t>{0}).ok());
}

// Four groups of two rollouts; groups 0 and 3 share their samples, as groups 1 and 2 do.
std::vector<v1::PromptGroup> GroupsOfSharedSamples() {
  std::vector<v1::PromptGroup> groups;
  for (const std::string sample : {"b", "a", "a", "b"}) {
    groups.push_back(MakeGroup(absl::StrCat("g", groups.size()), {MakeRollout({true}), MakeRollout({true})}));
    groups.back().set_stat_group(absl::StrCat(sample, "0"));
    for (int r = 0; r < 2; ++r) groups.back().mutable_rollouts(r)->set_sample_id(absl::StrCat(sample, r));
  }
  return groups;
}

TEST(StepNormalizerTest, NamesTheFirstSampleOrStatGroupOfTheMiniBatchThatIsApart) {
  const std::vector<v1::PromptGroup> groups = GroupsOfSharedSamples();
  for (const std::string mode : {"seq-mean-token-mean", "prompt-mean"}) {
    const v1::LossConfig loss = Loss("gpg", mode);
    const StepNormalizer normalizer(loss, groups);
    for (const auto& [mini_batch, name] : std::vector<std::pair<std::vector<uint32_t>, std::string>>{
             {{0, 1, 2}, "\"b0\""}, {{1, 2, 3}, "\"b0\""}, {{1, 0}, "\"a0\""}, {{3, 2}, "\"b0\""}}) {
      EXPECT_THAT(std::string(normalizer.Normalize(mini_batch).status().message()), HasSubstr(name)) << mode;
    }
    EXPECT_TRUE(normalizer.Normalize(std::vector<uint32_t>{1, 2}).ok()) << mode;
    EXPECT_TRUE(normalizer.Normalize(std::vector<uint32_t>{3, 0}).ok()) << mode;
  }
}

TEST(StepNormalizerTest, CountsTheWholeRequestOnceForAllSteps) {
  for (const std::string mode : {"seq-mean-token-mean", "prompt-mean"}) {
    std::vector<v1::PromptGroup> groups = GroupsOfSharedSamples();
    const v1::LossConfig loss = Loss("gpg", mode);
    const StepNormalizer normalizer(loss, groups);
    groups[2] = groups[0];  // a step that counts again would now miss a member
    EXPECT_TRUE(normalizer.Normalize(std::vector<uint32_t>{0, 3}).ok()) << mode;
  }
}

// The weights of all unmasked tokens, over D: what the mode averages over.
double SumOfWeights(const std::string& name, const std::vector<v1::PromptGroup>& groups) {
  const StepNormalization step = Normalize(name, groups, {0, 1});
  double sum = 0;
  size_t rollout_index = 0;
  for (const v1::PromptGroup& group : groups) {
    for (const v1::Rollout& rollout : group.rollouts()) {
      const double weight = step.rollout_weights[step.rollout_weights.size() == 1 ? 0 : rollout_index];
      sum += static_cast<double>(UnmaskedTokens(rollout)) * (weight / step.denominator);
      ++rollout_index;
    }
  }
  return sum;
}

TEST(RolloutWeightsTest, SumToWhatTheModeAveragesOver) {
  const std::vector<v1::PromptGroup> groups = RaggedGroups();
  // Roundings of a sum of at most seven terms.
  EXPECT_NEAR(SumOfWeights("token-mean", groups), 1, 1e-15);
  EXPECT_NEAR(SumOfWeights("token-sum", groups), 7, 1e-15);
  EXPECT_NEAR(SumOfWeights("seq-mean-token-sum", groups), 7.0 / 5, 1e-15);
  EXPECT_NEAR(SumOfWeights("seq-mean-token-sum-norm", groups), 7.0 / 50, 1e-15);
  EXPECT_NEAR(SumOfWeights("seq-mean-token-mean", groups), 3.0 / 5, 1e-15);
  EXPECT_NEAR(SumOfWeights("prompt-mean", groups), 1, 1e-15);
}

TEST(RolloutWeightsTest, NothingToAverageOverGivesZeroNeverInfinity) {
  const std::vector<v1::PromptGroup> groups = {MakeGroup("a", {MakeRollout({false}), MakeRollout({true})})};
  EXPECT_THAT(Normalize("seq-mean-token-mean", groups, {0}).rollout_weights, ElementsAre(0, 1));
}

}  // namespace
}  // namespace stemma
