#include "server/protocol/reload.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mesh.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

class ReloadTest : public ::testing::Test {
 protected:
  ReloadTest() { out_.Begin(absl::UnixEpoch()); }

  std::optional<absl::StatusOr<LoadedRequest>> Take(const std::string& name) {
    internal::v1::SpoolFile file;
    file.set_name(name);
    return reload_.Take(file, ModelConfig(), {config_, Rates()});
  }

  // What was asked for since the last call.
  template <typename Asked>
  std::vector<Asked> Asks() {
    std::vector<Asked> asked;
    for (const Action& action : out_.Take().actions) {
      if (const auto* one = std::get_if<Asked>(&action)) asked.push_back(*one);
    }
    return asked;
  }

  // `digest`: tells the requests apart.
  void Loaded(PlanId id, const std::string& digest) {
    auto request = std::make_shared<TrainingRequest>();
    request->digest = digest;
    auto loaded = std::make_shared<absl::StatusOr<LoadedRequest>>(
        LoadedRequest{.request = std::move(request), .plan = {}, .mesh = config_.mesh()});
    reload_.OnLoaded({.id = id, .loaded = std::move(loaded)});
  }

  Outbox out_;
  Reload reload_{&out_};
  v1::RunConfig config_;
};

// The one that was read may have been cancelled meanwhile.
TEST_F(ReloadTest, WhatWasReadIsNotTakenForAnotherFile) {
  EXPECT_FALSE(Take("a"));
  const std::vector<LoadAction> first = Asks<LoadAction>();
  ASSERT_EQ(first.size(), 1u);
  Loaded(first[0].id, "of a");
  EXPECT_FALSE(Take("b"));
  const std::vector<LoadAction> second = Asks<LoadAction>();
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].file.name(), "b");
  Loaded(second[0].id, "of b");
  const auto taken = Take("b");
  ASSERT_TRUE(taken && taken->ok());
  EXPECT_EQ((*taken)->request->digest, "of b");
  EXPECT_FALSE(Take("b")) << "it was taken";
  EXPECT_EQ(Asks<LoadAction>().size(), 1u) << "and is read again";
}

TEST_F(ReloadTest, OnlyWhatItWaitsForIsItsOwn) {
  EXPECT_FALSE(Take("a"));
  const PlanId read = Asks<LoadAction>().at(0).id;
  Loaded(read - 1, "of another");
  EXPECT_FALSE(Take("a")) << "it is still on its way";
  Loaded(read, "of a");
  config_.mutable_mesh()->set_dp(2);
  EXPECT_FALSE(Take("a"));
  const std::vector<PlanAction> asked = Asks<PlanAction>();
  ASSERT_EQ(asked.size(), 1u) << "its plan is of another mesh";
  const auto planned = [this](PlanId id, uint64_t peak_bytes) {
    RequestPlan plan;
    plan.report.set_peak_bytes(peak_bytes);
    return reload_.OnPlanned({.id = id, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(std::move(plan))});
  };
  EXPECT_FALSE(planned(1, 0)) << "an arrival's";
  EXPECT_TRUE(planned(asked[0].id + 1, 0));
  EXPECT_FALSE(Take("a")) << "a plan of something else";
  EXPECT_TRUE(planned(asked[0].id, 0));
  const auto taken = Take("a");
  ASSERT_TRUE(taken && taken->ok());
  EXPECT_EQ((*taken)->request->digest, "of a");
}

// Its steps may have been decided by a version that counts otherwise.
TEST_F(ReloadTest, APlanForOtherRanksKeepsTheNumbersOfTheSteps) {
  const auto plan_of = [](std::vector<uint32_t> groups, double denominator) {
    RequestPlan plan;
    v1::StepPlan& step = *plan.plan.add_steps();
    step.mutable_groups()->Add(groups.begin(), groups.end());
    plan.steps.push_back({.denominator = denominator});
    return plan;
  };
  const auto taken_after = [&](RequestPlan again) {
    EXPECT_FALSE(Take("a"));
    auto loaded = std::make_shared<absl::StatusOr<LoadedRequest>>(LoadedRequest{
        .request = std::make_shared<TrainingRequest>(), .plan = plan_of({4, 2}, 3), .mesh = config_.mesh()});
    reload_.OnLoaded({.id = Asks<LoadAction>().at(0).id, .loaded = std::move(loaded)});
    config_.mutable_mesh()->set_dp(DpSize(config_.mesh()) + 1);
    EXPECT_FALSE(Take("a"));
    const PlanId asked = Asks<PlanAction>().at(0).id;
    reload_.OnPlanned({.id = asked, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(std::move(again))});
    return *Take("a");
  };
  RequestPlan again = plan_of({4, 2}, 7);
  again.report.set_flops(11);
  const absl::StatusOr<LoadedRequest> taken = taken_after(again);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->plan.report.flops(), 11) << "the new plan";
  EXPECT_EQ(taken->plan.numbers(0).denominator, 3) << "the decided numbers";
  EXPECT_TRUE(absl::IsFailedPrecondition(taken_after(plan_of({2, 4}, 3)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(taken_after(plan_of({4}, 3)).status()));
  RequestPlan twice = plan_of({4, 2}, 3);
  twice.repeats = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(taken_after(twice).status()));
}

}  // namespace
}  // namespace stemma::server
