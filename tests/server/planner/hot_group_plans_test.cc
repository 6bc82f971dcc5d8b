// Plans of a mini-batch in which one group has half of all tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/planner/planner.h"
#include "tests/server/planner/split_plans.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {
namespace {

class HotGroupTest : public ::testing::Test {
 protected:
  HotGroupTest() {
    model_.config =
        SyntheticModel({.hidden = 512, .layers = 4, .heads = 8, .kv_heads = 4, .head_size = 64, .ffn = 1408});
    model_.run.set_dtype("fp32");
    model_.run.set_head_chunk_tokens(512);
    model_.run.set_memory_budget_bytes(uint64_t{8} << 30);
    model_.run.set_split_groups(v1::SPLIT_AUTO);
    for (int g = 0; g < 24; ++g) AddGroup(200, 8, 100);
    AddGroup(1000, 230, 100);
  }
  void AddGroup(int64_t prompt_tokens, int rollouts, int64_t response_tokens) {
    PlannerGroup& group = request_.groups.emplace_back();
    group.uid = absl::StrCat("g", request_.groups.size());
    group.prompt_tokens = prompt_tokens;
    for (int i = 0; i < rollouts; ++i) group.rollouts.push_back({response_tokens});
  }
  v1::StepReport Report(uint32_t dp) {
    model_.run.mutable_mesh()->set_dp(dp);
    const auto plan = MakePlan(model_, request_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = plan->plan;
    return plan->report.steps(0);
  }

  PlannerModel model_;
  PlannerRequest request_;
  v1::Plan plan_;
};

double Total(const v1::RankReport& rank) {
  const v1::PhaseSeconds& seconds = rank.seconds();
  return seconds.prefix_forward() + seconds.suffix() + seconds.prefix_backward() + rank.exchange_s();
}

double Slowest(const v1::StepReport& report) {
  double slowest = 0;
  for (const v1::RankReport& rank : report.ranks()) slowest = std::max(slowest, Total(rank));
  return slowest;
}

TEST_F(HotGroupTest, IsSplitSoThatTheRanksEndTogether) {
  for (const uint32_t dp : {4U, 8U}) {
    SCOPED_TRACE(dp);
    const v1::StepReport report = Report(dp);
    ExpectSplitsHold(plan_.steps(0), request_);
    ASSERT_GE(report.split_groups_size(), 1);
    EXPECT_GE(report.imbalance_whole(), 1.8);
    EXPECT_LE(report.imbalance(), 1.15);
    model_.run.set_split_groups(v1::SPLIT_OFF);
    const v1::StepReport whole = Report(dp);
    EXPECT_EQ(whole.imbalance(), report.imbalance_whole());
    // As packed, and not as the groups cost alone.
    EXPECT_LT(Slowest(report), Slowest(whole) * 1.15 / 1.8);
    EXPECT_EQ(whole.split_groups_size(), 0);
    model_.run.set_split_groups(v1::SPLIT_AUTO);
  }
}

// Parts go from one copy to another; what a collective of all copies takes has nothing to do with it.
TEST_F(HotGroupTest, IsSplitByWhatMessagesBetweenTwoCopiesTake) {
  const Rates measured = model_.rates;
  model_.rates[kDataByte] = model_.rates[kDataCollective] = 1;
  EXPECT_EQ(Report(4).split_groups_size(), 1);
  for (const Rate slow : {kPartByte, kPartMessage}) {
    model_.rates = measured;
    model_.rates[slow] = 1;
    EXPECT_EQ(Report(4).split_groups_size(), 0) << kRateNames[slow];
  }
}

// Copies of several stages share it, too: stage by stage, each what its own layers have.
TEST_F(HotGroupTest, IsSplitBetweenCopiesOfSeveralStages) {
  model_.run.mutable_mesh()->set_pp(2);
  const v1::StepReport report = Report(4);
  ExpectSplitsHold(plan_.steps(0), request_);
  ASSERT_GE(report.split_groups_size(), 1);
  model_.run.set_split_groups(v1::SPLIT_OFF);
  const v1::StepReport whole = Report(4);
  EXPECT_LT(report.pipeline_s(), whole.pipeline_s() * 1.3 / 1.8);
  const auto helpers = static_cast<uint64_t>(report.split_groups(0).ranks_size() - 1);
  EXPECT_EQ(report.split_groups(0).bytes(), helpers * 4 * 999 * 4 * 64 * (2 * 4 + 2 * 4)) << "of all stages together";
}

// bytes = helpers x layers x rows x kv_heads x head_size x (2 x run bytes + 2 x accumulator bytes)
TEST_F(HotGroupTest, SendsAsManyBytesAsTheFormulaSays) {
  for (const auto& [dtype, run, accumulator] :
       {std::tuple{"fp32", 4U, 4U}, std::tuple{"bf16", 2U, 4U}, std::tuple{"fp64", 8U, 8U}}) {
    SCOPED_TRACE(dtype);
    model_.run.set_dtype(dtype);
    request_.forward_only = false;
    const v1::StepReport report = Report(4);
    ASSERT_EQ(report.split_groups_size(), 1);
    const auto helpers = static_cast<uint64_t>(report.split_groups(0).ranks_size() - 1);
    EXPECT_EQ(report.split_groups(0).bytes(), helpers * 4 * 999 * 4 * 64 * (2 * run + 2 * accumulator));
    request_.forward_only = true;
    const v1::StepReport forward = Report(4);
    ASSERT_EQ(forward.split_groups_size(), 1);
    const auto forward_helpers = static_cast<uint64_t>(forward.split_groups(0).ranks_size() - 1);
    EXPECT_EQ(forward.split_groups(0).bytes(), forward_helpers * 4 * 999 * 4 * 64 * 2 * run);
  }
}

// A helper has the hot set and its waves, and neither the prefix's tape nor its work.
TEST_F(HotGroupTest, AHelperIsChargedNoPrefix) {
  const v1::StepReport report = Report(4);
  int helpers = 0;
  for (int i = 0; i < report.clusters_size(); ++i) {
    const v1::Cluster& cluster = plan_.steps(0).clusters(i);
    const v1::ClusterReport& helper = report.clusters(i);
    if (!cluster.has_owner_rank()) continue;
    ++helpers;
    EXPECT_EQ(helper.seconds().prefix_forward(), 0);
    EXPECT_EQ(helper.seconds().prefix_backward(), 0);
    EXPECT_GT(helper.seconds().suffix(), 0);
    EXPECT_EQ(helper.prefix_forward().peak(), 0U);
    EXPECT_EQ(helper.suffix().hot_set(), 999U * (4 * 4 * 64 * 4 * 4 + 16))
        << "K, V, gK, gV; each row's token, position";
    EXPECT_EQ(helper.suffix().dormant_set(), 0U);
    EXPECT_GT(helper.suffix().wave_tape(), 0U);
    EXPECT_EQ(helper.groups_size(), 0) << "what the group costs is said once";
    EXPECT_THAT(helper.reason(), ::testing::HasSubstr("split: helps rank "));
  }
  EXPECT_GE(helpers, 1);
}

// What is measured of a rank is held against what it did.
TEST_F(HotGroupTest, TheWorkOfAllRanksIsThatOfOneRankAndTheWavesThatAreLessFull) {
  model_.run.mutable_mesh()->set_dp(4);
  const auto split = MakePlan(model_, request_);
  model_.run.set_split_groups(v1::SPLIT_OFF);
  const auto whole = MakePlan(model_, request_);
  ASSERT_TRUE(split.ok() && whole.ok());
  PhaseWork of_split, of_whole;
  for (const PhaseWork& work : split->work[0]) of_split += work;
  for (const PhaseWork& work : whole->work[0]) of_whole += work;
  for (const Rate rate : {kLinear, kAttentionForward, kAttentionBackward, kHead}) {
    EXPECT_NEAR(of_split.prefix_forward[rate] / std::max(1.0, of_whole.prefix_forward[rate]),
                of_whole.prefix_forward[rate] > 0 ? 1 : 0, 1e-12);  // sums of doubles in another order
    EXPECT_NEAR(of_split.suffix[rate] / of_whole.suffix[rate], 1, 1e-12);
  }
  EXPECT_GE(of_split.suffix[kWave], of_whole.suffix[kWave]);
}

// A group that would take one rank the whole step trains on all of them.
TEST_F(HotGroupTest, AloneIsSharedByAllRanks) {
  request_.groups.erase(request_.groups.begin(), request_.groups.end() - 1);
  const v1::StepReport report = Report(4);
  ASSERT_EQ(report.split_groups_size(), 1);
  EXPECT_EQ(report.split_groups(0).ranks_size(), 4);
  EXPECT_NEAR(report.imbalance_whole(), 4, 1e-9);
  for (const v1::RankReport& rank : report.ranks()) EXPECT_GT(Total(rank), 0.5 * Slowest(report));
}

// Two groups of long responses to a prompt of few tokens: alone, reuse saves nothing. Dense, ranks could not share
// them.
class ShortPromptsTest : public HotGroupTest {
 protected:
  ShortPromptsTest() {
    request_.groups.clear();
    for (int g = 0; g < 2; ++g) AddGroup(4, 8, 1000);
  }
  // The groups that are computed with reuse, and why one is, as the plan's last clusters say.
  std::multiset<std::string> Reused(const v1::StepReport& report) {
    std::multiset<std::string> uids;
    for (const v1::ClusterReport& cluster : report.clusters()) {
      for (const std::string& uid : cluster.reuse_uids()) uids.insert(uid);
      if (cluster.reuse_uids_size() > 0) reason_ = cluster.reason();
    }
    return uids;
  }

  std::string reason_;
};

TEST_F(ShortPromptsTest, AreReusedWhereRanksShareThem) {
  EXPECT_TRUE(Reused(Report(2)).empty()) << "one for each rank";
  const v1::StepReport shared = Report(8);
  ExpectSplitsHold(plan_.steps(0), request_);
  ExpectReportHolds(plan_.steps(0), shared, request_);
  EXPECT_EQ(shared.split_groups_size(), 2);
  EXPECT_EQ(Reused(shared).size(), 8U) << "a part on each rank";
  EXPECT_THAT(reason_, ::testing::HasSubstr("reuse: ranks share it, which dense would not let them; alone it takes "));
  EXPECT_LT(shared.imbalance(), 1.2);
  EXPECT_EQ(shared.tokens_computed(), 2U * (3 + 8 * 1000)) << "as it is computed, and not as it was first decided";
  EXPECT_LT(shared.flops(), shared.flops_dense());
  request_.schedule = v1::DENSE;
  EXPECT_TRUE(Reused(Report(8)).empty()) << "asked for";
  request_.schedule = v1::AUTO;
  model_.run.set_split_groups(v1::SPLIT_OFF);
  EXPECT_TRUE(Reused(Report(8)).empty()) << "nothing is split";
}

TEST_F(ShortPromptsTest, StayDenseWhereNoneSharesThem) {
  for (int g = 0; g < 30; ++g) AddGroup(4, 1, 1000);
  const std::multiset<std::string> reused = Reused(Report(4));
  EXPECT_TRUE(reused.empty()) << "there is enough to do for all ranks meanwhile";
  model_.rates[kPartMessage] = 1e3;
  request_.groups.resize(2);
  EXPECT_TRUE(Reused(Report(8)).empty()) << "sending takes longer than waiting";
}

// A rank stays where its rollouts' entry log-probs are.
TEST_F(ShortPromptsTest, AreSharedInThePassBeforeTheStep) {
  request_.log_prob_passes = 1;
  request_.epochs = 2;
  model_.run.mutable_mesh()->set_dp(8);
  const auto plan = MakePlan(model_, request_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->report.steps(0).split_groups_size(), 2);
  EXPECT_EQ(plan->report.steps(1).split_groups_size(), 2);
  ExpectSplitsHold(plan->plan.log_prob_pass(), request_);
  ExpectSplitsHold(plan->plan.steps(0), request_);
}

}  // namespace
}  // namespace stemma::testing
