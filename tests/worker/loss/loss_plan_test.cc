// What a PREPARE says about the loss: weights over D for each rollout, and what is refused.
#include "worker/loss/loss_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace stemma::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Steps over groups 2 and 0 of a payload whose groups have 2, 1 and 3 rollouts.
const std::vector<int64_t> kRollouts = {2, 1, 3};

internal::v1::Prepare PrepareOf(const std::vector<double>& weights, double denominator = 4) {
  internal::v1::Prepare prepare;
  prepare.mutable_header()->mutable_loss()->set_loss_mode("gpg");
  prepare.mutable_plan()->add_groups(2);
  prepare.mutable_plan()->add_groups(0);
  prepare.set_denominator(denominator);
  prepare.mutable_rollout_weights()->Add(weights.begin(), weights.end());
  return prepare;
}

TEST(LossPlanTest, WeightsAreInThePlansOrderOverD) {
  const auto plan = MakeLossPlan(PrepareOf({1, 2, 3, 4, 5}), kRollouts);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->weights, ElementsAre(ElementsAre(1.0, 1.25), IsEmpty(), ElementsAre(0.25, 0.5, 0.75)));
}

TEST(LossPlanTest, OneWeightIsThatOfAllRollouts) {
  const auto plan = MakeLossPlan(PrepareOf({2}), kRollouts);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->weights, ElementsAre(ElementsAre(0.5, 0.5), IsEmpty(), ElementsAre(0.5, 0.5, 0.5)));
}

TEST(LossPlanTest, NothingToAverageOverGivesZeroNeverInfinity) {
  const auto plan = MakeLossPlan(PrepareOf({2}, /*denominator=*/0), kRollouts);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->weights[0], ElementsAre(0, 0));
}

TEST(LossPlanTest, AnotherNumberOfWeightsThanRolloutsIsRefused) {
  for (const std::vector<double>& weights : {std::vector<double>{}, {1, 2, 3, 4}, {1, 2, 3, 4, 5, 6}}) {
    const absl::Status status = MakeLossPlan(PrepareOf(weights), kRollouts).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << weights.size();
    EXPECT_THAT(status.message(), HasSubstr("rollout_weights"));
  }
}

TEST(LossPlanTest, OptionsAreTheRequests) {
  internal::v1::Prepare prepare = PrepareOf({1});
  v1::LossConfig& loss = *prepare.mutable_header()->mutable_loss();
  loss.set_loss_mode("vanilla");
  loss.set_clip_ratio_low(0.1);
  loss.set_clip_ratio_high(0.3);
  loss.set_entropy_coeff(0.02);
  const LossOptions plain = MakeLossPlan(prepare, kRollouts)->options;
  EXPECT_EQ(plain.mode, LossMode::kVanilla);
  EXPECT_EQ(plain.clip_low, 0.1);
  EXPECT_EQ(plain.clip_high, 0.3);
  EXPECT_EQ(plain.entropy_coeff, 0.02);
  EXPECT_EQ(plain.clip_c, std::nullopt) << "absent: off, and not 0";
  EXPECT_EQ(plain.kl_type, KlType::kNone);
  loss.set_clip_ratio_c(3);
  loss.set_kl_loss_coef(0);  // measured all the same
  loss.set_kl_loss_type("k2+");
  const LossOptions all = MakeLossPlan(prepare, kRollouts)->options;
  EXPECT_EQ(all.clip_c, 3);
  EXPECT_EQ(all.kl_type, ParseKlType("k2")->type);
  EXPECT_TRUE(all.kl_straight_through);
}

TEST(LossPlanTest, AGroupThatIsNotInThePayloadIsRefused) {
  internal::v1::Prepare prepare = PrepareOf({1});
  prepare.mutable_plan()->add_groups(7);
  EXPECT_THAT(MakeLossPlan(prepare, kRollouts).status().message(), HasSubstr("group 7"));
}

}  // namespace
}  // namespace stemma::worker
