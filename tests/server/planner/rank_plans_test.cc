// Plans for several data-parallel ranks. Requests, budgets and ranks are drawn; STEMMA_SEED draws others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cost/state_bytes.h"
#include "server/planner/planner.h"
#include "tests/server/planner/split_plans.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {
namespace {

class RankPlansTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  RankPlansTest() : random_(FirstSeed() + GetParam()) {
    model_.config =
        SyntheticModel({.hidden = 512, .layers = 4, .heads = 8, .kv_heads = 4, .head_size = 64, .ffn = 1408});
    model_.run.set_dtype("fp32");
    model_.run.set_head_chunk_tokens(512);
    model_.run.mutable_mesh()->set_dp(static_cast<uint32_t>(Between(2, 5)));
    model_.run.set_split_groups(v1::SPLIT_OFF);
    const int64_t state = StateBytesOf(model_.config, model_.run).device(v1::DEVICE);
    model_.run.set_memory_budget_bytes(static_cast<uint64_t>(state + Between(200, 4000) * (1 << 20)));
    for (int64_t g = Between(1, 24); g > 0; --g) {
      PlannerGroup& group = request_.groups.emplace_back();
      group.uid = absl::StrCat("g", request_.groups.size());
      group.prompt_tokens = Between(1, 900);
      for (int64_t i = Between(1, 9); i > 0; --i) {
        group.rollouts.push_back({Between(1, 300), Between(0, 9) > 0});
      }
    }
    request_.mini_batch_groups = Between(0, 1) * Between(1, 8);
    request_.epochs = Between(1, 3);
    request_.shuffle = Between(0, 1) == 1;
    request_.payload_digest = absl::StrCat(GetParam());
    request_.log_prob_passes = Between(0, 2);
  }

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  PlanResult Plan() const {
    auto plan = MakePlan(model_, request_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : PlanResult{};
  }
  uint32_t num_ranks() const { return model_.run.mesh().dp(); }

  std::mt19937 random_;
  PlannerModel model_;
  PlannerRequest request_;
};

// By group, the ranks whose clusters hold rollouts of it, and how many.
struct Computed {
  std::map<uint32_t, std::set<uint32_t>> ranks;
  std::map<uint32_t, int64_t> rollouts;
};

Computed ComputedBy(const v1::StepPlan& step) {
  Computed computed;
  for (const v1::Cluster& cluster : step.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) {
        computed.ranks[member.group()].insert(cluster.dp_rank());
        ++computed.rollouts[member.group()];
      }
    }
    for (const uint32_t group : cluster.prefix_groups()) computed.ranks[group].insert(cluster.dp_rank());
  }
  return computed;
}

TEST_P(RankPlansTest, EachGroupIsComputedOnceByOneRank) {
  const PlanResult result = Plan();
  for (const v1::StepPlan& step : result.plan.steps()) {
    const Computed computed = ComputedBy(step);
    for (const uint32_t g : step.groups()) {
      const std::vector<PlannerRollout>& rollouts = request_.groups[g].rollouts;
      const auto runs = std::count_if(rollouts.begin(), rollouts.end(), [](const PlannerRollout& r) { return r.run; });
      EXPECT_EQ(computed.rollouts.contains(g) ? computed.rollouts.at(g) : 0, runs) << "group " << g;
      if (runs == 0) continue;
      EXPECT_EQ(computed.ranks.at(g).size(), 1U) << "group " << g;
      EXPECT_LT(*computed.ranks.at(g).begin(), num_ranks());
    }
  }
}

// Entry log-probs are where the group is, in every epoch, shuffled ones too.
TEST_P(RankPlansTest, AGroupWithEntryLogProbsStaysOnItsRank) {
  request_.log_prob_passes = 1;
  const PlanResult result = Plan();
  const Computed entry = ComputedBy(result.plan.log_prob_pass());
  for (const v1::StepPlan& step : result.plan.steps()) {
    for (const auto& [group, ranks] : ComputedBy(step).ranks) EXPECT_EQ(ranks, entry.ranks.at(group)) << group;
  }
}

TEST_P(RankPlansTest, TheReportOfAStepIsMadeOfItsRanks) {
  const PlanResult result = Plan();
  const int passes = request_.log_prob_passes > 0 ? 1 : 0;
  ASSERT_EQ(result.report.steps_size(), result.plan.steps_size() + passes);
  for (const v1::StepReport& step : result.report.steps()) {
    ASSERT_EQ(step.ranks_size(), static_cast<int>(num_ranks()));
    uint64_t tokens = 0, peak = 0;
    double suffix = 0, suffix_of_all = 0, suffix_of_clusters = 0;
    for (const v1::RankReport& rank : step.ranks()) {
      tokens += rank.tokens_computed();
      peak = std::max(peak, rank.peak_bytes());
      suffix = std::max(suffix, rank.seconds().suffix());
      suffix_of_all += rank.seconds().suffix();
    }
    for (const v1::ClusterReport& cluster : step.clusters()) suffix_of_clusters += cluster.seconds().suffix();
    EXPECT_EQ(tokens, step.tokens_computed());
    EXPECT_EQ(peak, step.peak_bytes());
    EXPECT_EQ(suffix, step.seconds().suffix()) << "the slowest rank's";
    EXPECT_NEAR(suffix_of_all, suffix_of_clusters, 1e-12 * suffix_of_all);  // sums of doubles in another order
    EXPECT_GE(step.imbalance(), 1);
    EXPECT_GE(step.over_bound(), 0);
  }
  for (const std::vector<PhaseWork>& step : result.work) EXPECT_EQ(step.size(), num_ranks());
}

TEST_P(RankPlansTest, OneRankHasThePlanOfARunWithoutAMesh) {
  model_.run.mutable_mesh()->set_dp(1);
  const PlanResult one = Plan();
  model_.run.clear_mesh();
  const PlanResult none = Plan();
  EXPECT_EQ(one.plan.SerializeAsString(), none.plan.SerializeAsString());
  EXPECT_EQ(one.report.SerializeAsString(), none.report.SerializeAsString());
}

TEST_P(RankPlansTest, SplitGroupsAreInPartsThatAreEachRolloutOnce) {
  for (const v1::Split mode : {v1::SPLIT_ON, v1::SPLIT_AUTO}) {
    SCOPED_TRACE(v1::Split_Name(mode));
    model_.run.set_split_groups(mode);
    const PlanResult result = Plan();
    const int passes = request_.log_prob_passes > 0 ? 1 : 0;
    for (int i = 0; i < result.plan.steps_size(); ++i) {
      ExpectSplitsHold(result.plan.steps(i), request_);
      ExpectReportHolds(result.plan.steps(i), result.report.steps(passes + i), request_);
    }
    if (passes == 0) continue;
    ExpectSplitsHold(result.plan.log_prob_pass(), request_);
    ExpectReportHolds(result.plan.log_prob_pass(), result.report.steps(0), request_);
  }
}

TEST_P(RankPlansTest, OnSplitsEachReusedGroupOverAsManyRanksAsItHasRollouts) {
  model_.run.set_split_groups(v1::SPLIT_ON);
  const PlanResult result = Plan();
  for (const v1::StepPlan& step : result.plan.steps()) {
    const Computed computed = ComputedBy(step);
    for (const v1::Cluster& cluster : step.clusters()) {
      for (const uint32_t g : cluster.prefix_groups()) {
        const auto rollouts = static_cast<size_t>(computed.rollouts.at(g));
        EXPECT_EQ(computed.ranks.at(g).size(), std::min<size_t>(num_ranks(), rollouts)) << "group " << g;
      }
    }
  }
}

// By rollout, the rank that runs it.
std::map<std::pair<uint32_t, uint32_t>, uint32_t> RanksOfRollouts(const v1::StepPlan& step) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ranks;
  for (const v1::Cluster& cluster : step.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) ranks[{member.group(), member.rollout()}] = cluster.dp_rank();
    }
  }
  return ranks;
}

// Entry log-probs lie on the rank that ran the rollout, and the group is split in the same way ever after.
TEST_P(RankPlansTest, ARolloutWithEntryLogProbsStaysOnItsRank) {
  request_.log_prob_passes = 1;
  for (const v1::Split mode : {v1::SPLIT_ON, v1::SPLIT_AUTO}) {
    SCOPED_TRACE(v1::Split_Name(mode));
    model_.run.set_split_groups(mode);
    const PlanResult result = Plan();
    const auto entry = RanksOfRollouts(result.plan.log_prob_pass());
    for (const v1::StepPlan& step : result.plan.steps()) {
      for (const auto& [rollout, rank] : RanksOfRollouts(step)) {
        EXPECT_EQ(rank, entry.at(rollout)) << rollout.first << "/" << rollout.second;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, RankPlansTest, ::testing::Range(0U, 40U));

TEST_P(RankPlansTest, StateIsARanks) {
  const PlanResult plan = Plan();
  const StateBytes whole = StateBytesOf(model_.config, RunDtype::kFp32);
  const auto ranks = static_cast<double>(model_.run.mesh().dp());
  // Rounded up to a unit in each of some forty tensors.
  EXPECT_NEAR(static_cast<double>(plan.report.state().optimizer()) * ranks / static_cast<double>(whole.optimizer), 1,
              1e-3);
  EXPECT_EQ(plan.report.state().device(), static_cast<uint64_t>(whole.device(v1::DEVICE) - whole.optimizer) +
                                              plan.report.state().optimizer() + plan.report.state().exchange());
  EXPECT_EQ(plan.report.state().exchange(), static_cast<uint64_t>(StateBytesOf(model_.config, model_.run).exchange));
}

// Even groups divide evenly; a plan that gave all to one rank would have an imbalance of 4.
TEST(RankPlansBalanceTest, EvenGroupsAreDealtEvenly) {
  PlannerModel model;
  model.config = SyntheticModel({});
  model.run.set_dtype("fp32");
  model.run.set_head_chunk_tokens(512);
  model.run.set_memory_budget_bytes(uint64_t{8} << 30);
  model.run.mutable_mesh()->set_dp(4);
  PlannerRequest request;
  for (int g = 0; g < 16; ++g) {
    PlannerGroup& group = request.groups.emplace_back();
    group.uid = absl::StrCat("g", g);
    group.prompt_tokens = 200;
    for (int i = 0; i < 4; ++i) group.rollouts.push_back({50});
  }
  const auto plan = MakePlan(model, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NEAR(plan->report.steps(0).imbalance(), 1, 1e-12);  // four equal sums of equal numbers
  for (const v1::RankReport& rank : plan->report.steps(0).ranks()) EXPECT_EQ(rank.groups(), 4U);
}

}  // namespace
}  // namespace stemma::testing
