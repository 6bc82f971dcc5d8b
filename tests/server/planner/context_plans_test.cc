// Plans for context-parallel ranks: who computes which waves, and how K/V are kept. Requests, budgets and meshes are
// drawn; STEMMA_SEED draws others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/context_parallel_cost.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "server/planner/member_dealing.h"
#include "server/planner/memory_division.h"
#include "server/planner/planner.h"
#include "server/planner/split_cost.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"
#include "tests/server/planner/split_plans.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::kCollective;
using server::kLinear;
using server::kSent;
using server::MemberShape;
using ::testing::HasSubstr;
using ::testing::Not;

uint32_t FirstSeed() {
  const char* seed = std::getenv("STEMMA_SEED");
  return seed == nullptr ? 0 : static_cast<uint32_t>(std::atoi(seed));
}

class ContextPlansTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  ContextPlansTest() : random_(FirstSeed() + GetParam()) {
    model_.config = BenchModel();
    model_.config.max_positions = 4096;
    model_.run.set_dtype(Between(0, 1) == 0 ? "fp32" : "bf16");
    model_.run.set_head_chunk_tokens(512);
    *model_.run.mutable_mesh() = MakeMesh({.dp = static_cast<uint32_t>(Between(1, 3)),
                                           .cp = static_cast<uint32_t>(Between(2, 4)),
                                           .tp = static_cast<uint32_t>(Between(1, 2))});
    model_.run.set_split_groups(static_cast<v1::Split>(Between(v1::SPLIT_AUTO, v1::SPLIT_OFF)));
    left_bytes_ = Between(80, 300) * (1 << 20);
    SetBudget();
    for (int64_t g = Between(1, 12); g > 0; --g) {
      PlannerGroup& group = request_.groups.emplace_back();
      group.uid = absl::StrCat("g", request_.groups.size());
      group.prompt_tokens = Between(1, 1500);
      for (int64_t i = Between(1, 12); i > 0; --i) {
        group.rollouts.push_back({absl::StrCat(group.uid, "/", i), Between(1, 500), Between(0, 9) > 0});
      }
    }
    request_.mini_batch_groups = Between(0, 1) * Between(1, 8);
    request_.payload_digest = absl::StrCat(GetParam());
    request_.log_prob_passes = static_cast<int>(Between(0, 1));
  }

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  // The mesh decides what the state takes.
  void SetBudget() {
    const int64_t state = StateBytesOf(model_.config, model_.run).device(v1::DEVICE);
    model_.run.set_memory_budget_bytes(static_cast<uint64_t>(state + left_bytes_));
  }
  PlanResult Plan() const {
    auto plan = MakePlan(model_, request_);
    EXPECT_TRUE(plan.ok()) << "STEMMA_SEED " << FirstSeed() + GetParam() << ": " << plan.status();
    return plan.ok() ? *std::move(plan) : PlanResult{};
  }
  std::vector<v1::StepPlan> Steps(const PlanResult& result) const {
    std::vector<v1::StepPlan> steps(result.plan.steps().begin(), result.plan.steps().end());
    if (request_.log_prob_passes > 0) steps.push_back(result.plan.log_prob_pass());
    return steps;
  }
  uint32_t cp() const { return CpSize(model_.run.mesh()); }

  // A member as the cluster computes it.
  MemberShape ShapeOf(const v1::Cluster& cluster, const v1::WaveMember& member) const {
    const auto& shared = cluster.prefix_groups();
    const PlannerGroup& group = request_.groups[member.group()];
    const auto at = std::find(shared.begin(), shared.end(), member.group());
    return {.rows = group.rollouts[member.rollout()].response_tokens,
            .prefix_rows = group.prompt_tokens - 1,
            .dense = at == shared.end(),
            .prefix = at == shared.end() ? 0 : at - shared.begin()};
  }

  std::mt19937 random_;
  int64_t left_bytes_ = 0;  // to activations
  PlannerModel model_;
  PlannerRequest request_;
};

// Several ranks may have waves of a group, which is one group all the same.
TEST_P(ContextPlansTest, AReportNamesEachGroupOfAClusterOnce) {
  const PlanResult result = Plan();
  for (const v1::StepReport& step : result.report.steps()) {
    for (const v1::ClusterReport& cluster : step.clusters()) {
      std::multiset<std::string> uids(cluster.reuse_uids().begin(), cluster.reuse_uids().end());
      uids.insert(cluster.dense_uids().begin(), cluster.dense_uids().end());
      EXPECT_EQ(std::set<std::string>(uids.begin(), uids.end()).size(), uids.size()) << FirstSeed() + GetParam();
    }
  }
}

TEST_P(ContextPlansTest, EachRolloutIsInOneWaveAndWavesStandRankByRank) {
  for (const v1::StepPlan& step : Steps(Plan())) {
    std::set<std::pair<uint32_t, uint32_t>> seen;
    for (const v1::Cluster& cluster : step.clusters()) {
      uint32_t before = 0;
      for (const v1::Wave& wave : cluster.waves()) {
        EXPECT_LT(wave.cp_rank(), cp());
        EXPECT_GE(wave.cp_rank(), before);
        before = wave.cp_rank();
        EXPECT_GT(wave.members_size(), 0);
        for (const v1::WaveMember& member : wave.members()) {
          EXPECT_TRUE(seen.emplace(member.group(), member.rollout()).second);
        }
      }
    }
    for (const uint32_t g : step.groups()) {
      for (uint32_t i = 0; i < request_.groups[g].rollouts.size(); ++i) {
        EXPECT_EQ(seen.contains({g, i}), request_.groups[g].rollouts[i].run) << g << "/" << i;
      }
    }
  }
}

TEST_P(ContextPlansTest, RanksOfAClusterHaveAboutAsMuchToDo) {
  const ModelConfig config = RankShape(model_.config, model_.run).config;
  for (const v1::StepPlan& step : Steps(Plan())) {
    for (const v1::Cluster& cluster : step.clusters()) {
      std::vector<double> loads(cp());
      double sum = 0, largest = 0;
      for (const v1::Wave& wave : cluster.waves()) {
        for (const v1::WaveMember& member : wave.members()) {
          const double flops = server::MemberFlops(config, ShapeOf(cluster, member));
          loads[wave.cp_rank()] += flops;
          sum += flops;
          largest = std::max(largest, flops);
        }
      }
      EXPECT_LE(*std::max_element(loads.begin(), loads.end()), (sum / cp() + largest) * (1 + 1e-12));
    }
  }
}

// Phase B again, wave by wave, from the plan alone.
TEST_P(ContextPlansTest, EveryWaveFitsTheBudgetBesideItsPrefixes) {
  const ByteShape shape = RankShape(model_.config, model_.run);
  const int64_t budget = ActivationBytes(model_.config, model_.run);
  const PlanResult result = Plan();
  for (const v1::StepPlan& step : result.plan.steps()) {
    for (const v1::Cluster& cluster : step.clusters()) {
      PrefixShape prefix = {.block_rows = cluster.prefix_block_rows(),
                            .policy = cluster.prefix_policy(),
                            .offload = cluster.offload_prefix(),
                            .regather = cluster.regather_prefix()};
      for (const uint32_t g : cluster.prefix_groups()) {
        prefix.lengths.push_back(request_.groups[g].prompt_tokens - 1);
        prefix.rows += prefix.lengths.back();
      }
      for (const v1::Wave& wave : cluster.waves()) {
        WaveShape rows = {.policy = cluster.suffix_policy()};
        for (const v1::WaveMember& member : wave.members()) {
          const MemberShape m = ShapeOf(cluster, member);
          rows.rows += m.rows + (m.dense ? m.prefix_rows : 0);
          rows.kv_only_rows += m.dense ? m.prefix_rows : 0;
        }
        rows.runs.push_back({.rows = 1, .longest_rows = 1});  // attention's scratch is not what is asked here
        PhaseBytes bytes = SuffixBytes(shape, prefix, rows);
        if (cluster.has_owner_rank()) bytes.dormant_set = 0;
        EXPECT_LE(bytes.peak(), budget);
      }
    }
  }
  for (const v1::StepReport& report : result.report.steps()) {
    EXPECT_LE(report.peak_bytes(), static_cast<uint64_t>(budget));
  }
}

TEST_P(ContextPlansTest, SplitGroupsAreHeldWhateverIsForced) {
  model_.run.set_split_groups(v1::SPLIT_ON);
  for (const v1::PrefixKv kv : {v1::PREFIX_KV_AUTO, v1::PREFIX_KV_REGATHER}) {
    model_.run.set_prefix_kv(kv);
    const PlanResult result = Plan();
    const int passes = request_.log_prob_passes > 0 ? 1 : 0;
    for (int i = 0; i < result.plan.steps_size(); ++i) {
      ExpectSplitsHold(result.plan.steps(i), request_);
      const v1::StepReport& report = result.report.steps(passes + i);
      for (int c = 0; c < result.plan.steps(i).clusters_size(); ++c) {
        const v1::Cluster& cluster = result.plan.steps(i).clusters(c);
        const bool split = cluster.has_owner_rank() || cluster.helper_ranks_size() > 0;
        if (split) {
          EXPECT_FALSE(cluster.regather_prefix());
        } else if (kv == v1::PREFIX_KV_REGATHER && cluster.prefix_groups_size() > 0) {
          EXPECT_TRUE(cluster.regather_prefix());
        }
        const std::string& reason = report.clusters(c).reason();
        if (cluster.prefix_groups().empty()) {
          EXPECT_THAT(reason, Not(HasSubstr("K/V")));
        } else {
          EXPECT_THAT(reason, HasSubstr(cluster.regather_prefix() ? "K/V gathered again" : "K/V held"));
        }
      }
    }
  }
}

TEST_P(ContextPlansTest, TheSamePlanAgain) {
  const PlanResult one = Plan(), two = Plan();
  EXPECT_EQ(one.plan.SerializeAsString(), two.plan.SerializeAsString());
  EXPECT_EQ(one.report.SerializeAsString(), two.report.SerializeAsString());
}

TEST_P(ContextPlansTest, OneContextParallelRankHasThePlanOfARunWithout) {
  model_.run.mutable_mesh()->set_cp(1);
  SetBudget();
  const PlanResult one = Plan();
  model_.run.mutable_mesh()->clear_cp();
  for (const v1::PrefixKv kv : {v1::PREFIX_KV_UNSPECIFIED, v1::PREFIX_KV_HOLD, v1::PREFIX_KV_REGATHER}) {
    model_.run.set_prefix_kv(kv);
    const PlanResult none = Plan();
    EXPECT_EQ(one.plan.SerializeAsString(), none.plan.SerializeAsString());
    EXPECT_EQ(one.report.SerializeAsString(), none.report.SerializeAsString());
  }
  for (const v1::StepPlan& step : Steps(one)) {
    for (const v1::Cluster& cluster : step.clusters()) EXPECT_FALSE(cluster.regather_prefix());
  }
  for (const v1::StepReport& report : one.report.steps()) {
    for (const v1::ClusterReport& cluster : report.clusters()) EXPECT_THAT(cluster.reason(), Not(HasSubstr("K/V")));
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, ContextPlansTest, ::testing::Range(0U, 30U));

MemoryOptions SharedMemory(int64_t cp, int64_t budget_bytes = server::kNoLimit) {
  MemoryOptions options = BenchMemory(budget_bytes);
  options.shape.cp = cp;
  return options;
}

// A long prefix whose K/V are most of what there is.
TEST(PrefixKvTest, AreHeldWhereTheyFitAndGatheredAgainBelow) {
  const ClusterShape cluster = OneGroup(16384, 128, 8);
  MemoryOptions options = SharedMemory(4);
  const MemoryAnswer ample = server::ChooseMemory(options, cluster);
  ASSERT_TRUE(ample.choice.has_value());
  EXPECT_FALSE(ample.choice->way.prefix.regather);
  EXPECT_TRUE(ample.choice->cheapest);
  MemoryOptions held = options, regathered = options;
  held.prefix_kv = v1::PREFIX_KV_HOLD;
  regathered.prefix_kv = v1::PREFIX_KV_REGATHER;
  const int64_t least_held = server::FewestBytes(held, cluster);
  ASSERT_LT(server::FewestBytes(regathered, cluster), least_held);
  EXPECT_EQ(server::FewestBytes(options, cluster), server::FewestBytes(regathered, cluster));
  options.budget_bytes = least_held - 1;
  const MemoryAnswer tight = server::ChooseMemory(options, cluster);
  ASSERT_TRUE(tight.choice.has_value());
  EXPECT_TRUE(tight.choice->way.prefix.regather);
  EXPECT_THAT(server::MemoryReason(options, *tight.choice), HasSubstr("K/V gathered again"));
  held.budget_bytes = least_held - 1;
  EXPECT_FALSE(server::ChooseMemory(held, cluster).choice.has_value());
  ClusterShape split = cluster;
  split.split = true;
  EXPECT_FALSE(server::ChooseMemory(options, split).choice.has_value()) << "copies send each other what ranks hold";
}

// Copies that split a group hold its K/V in the pass before the step, too, which has a checkpoint's weights beside it
// and so less memory: a group that they cannot hold there stays whole, and is gathered again.
TEST(PrefixKvTest, AGroupIsSplitOnlyWhereThePassBeforeTheStepHoldsIt) {
  PlannerModel model;
  model.config = BenchModel();
  model.config.max_positions = 16384;
  model.run.set_dtype("fp32");
  model.run.set_head_chunk_tokens(64);
  *model.run.mutable_mesh() = MakeMesh({.dp = 2, .cp = 2});
  PlannerRequest request;
  PlannerGroup& group = request.groups.emplace_back();
  group.uid = "hot";
  group.prompt_tokens = 3000;
  for (int i = 0; i < 8; ++i) group.rollouts.push_back({absl::StrCat("hot/", i), 40, true});
  request.log_prob_passes = 1;
  request.reads_checkpoint = true;
  const StateBytes state = StateBytesOf(model.config, model.run);
  int planned = 0, split = 0;
  for (int64_t left = 0; left <= int64_t{200} << 20; left += int64_t{1} << 19) {
    model.run.set_memory_budget_bytes(static_cast<uint64_t>(state.device(v1::DEVICE) + state.weights + left));
    model.run.set_split_groups(v1::SPLIT_OFF);
    if (!MakePlan(model, request).ok()) continue;
    ++planned;
    model.run.set_split_groups(v1::SPLIT_ON);
    const auto plan = MakePlan(model, request);
    EXPECT_TRUE(plan.ok()) << left << " bytes beside the checkpoint: " << plan.status();
    split += plan.ok() && plan->report.steps(0).split_groups_size() > 0;
  }
  EXPECT_GT(split, 0) << "control: with more memory it is split";
  EXPECT_LT(split, planned);
}

TEST(PrefixKvTest, IsNotAskedWhereThereIsNoPrefix) {
  MemoryOptions options = SharedMemory(2);
  options.prefix_kv = v1::PREFIX_KV_REGATHER;
  for (const server::MemoryAlternative& way : server::Alternatives(options, OneGroup(700, 100, 4, /*reuse=*/false))) {
    EXPECT_FALSE(way.prefix.regather);
  }
  EXPECT_EQ(server::Alternatives(options, OneGroup(700, 100, 4)).size() * 2,
            server::Alternatives(SharedMemory(2), OneGroup(700, 100, 4)).size());
}

// The invariants of server/planner/memory_choice.h, with ranks that share the cluster.
TEST(PrefixKvTest, ALargerBudgetNeverCostsSeconds) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 3), seed % 4 != 0, random);
    MemoryOptions options = SharedMemory(2 + static_cast<int64_t>(seed % 3));
    options.forward_only = seed % 7 == 6;
    const int64_t fewest = server::FewestBytes(options, cluster);
    double before = std::numeric_limits<double>::infinity();
    options.budget_bytes = fewest - 1;
    EXPECT_FALSE(server::ChooseMemory(options, cluster).choice.has_value());
    for (double budget = static_cast<double>(fewest); budget < 8 * static_cast<double>(fewest); budget *= 1.17) {
      options.budget_bytes = static_cast<int64_t>(budget);
      const MemoryAnswer answer = server::ChooseMemory(options, cluster);
      ASSERT_TRUE(answer.choice.has_value()) << options.budget_bytes;
      EXPECT_LE(answer.choice->peak_bytes, options.budget_bytes);
      EXPECT_LE(answer.choice->seconds.total(), before * (1 + 1e-12)) << options.budget_bytes;
      before = answer.choice->seconds.total();
      // It is the fastest of all ways, evaluated one by one.
      if (seed % 8 != 0) continue;
      for (const server::MemoryAlternative& way : server::Alternatives(options, cluster)) {
        const std::optional<server::MemoryChoice> other = server::Evaluate(options, cluster, way);
        if (!other) continue;
        EXPECT_LE(before, other->seconds.total() * (1 + 1e-12));
      }
    }
  }
}

// Phase B is the slowest rank's, and gathering again is paid for in each round by all of them.
TEST(PrefixKvTest, SecondsAreTheSlowestRanksWithItsRounds) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 3), /*reuse=*/true, random);
    MemoryOptions options = SharedMemory(2 + static_cast<int64_t>(seed % 3));
    options.wave_suffixes = 2;
    const bool regather = seed % 2 == 0;
    PrefixShape prefix = {.rows = PackedPrefixRows(cluster), .lengths = cluster.prefix_rows, .regather = regather};
    const auto choice = server::Evaluate(options, cluster, {.prefix = prefix, .suffix_policy = v1::S1});
    ASSERT_TRUE(choice.has_value());
    ASSERT_EQ(choice->wave_ranks.size(), choice->wave_sizes.size());
    std::vector<int64_t> waves(static_cast<size_t>(options.shape.cp));
    for (const uint32_t rank : choice->wave_ranks) ++waves[rank];
    ByteShape alone = options.shape;
    alone.cp = 1;
    const std::vector<uint32_t> dealt = server::DealMembers(alone.config, cluster.members, options.shape.cp);
    double slowest_s = 0;
    for (size_t rank = 0; rank < waves.size(); ++rank) {
      ClusterShape own;
      for (size_t i = 0; i < dealt.size(); ++i) {
        if (dealt[i] == rank) own.members.push_back(cluster.members[i]);
      }
      const double seconds =
          server::Seconds(server::ClusterWork(alone, own, {}, v1::S1, waves[rank]), options.rates).suffix;
      slowest_s = std::max(slowest_s, seconds);
    }
    const int64_t rounds = *std::max_element(waves.begin(), waves.end());
    ContextSentBytes round = RoundForwardContextSent(options.shape, prefix);
    round += RoundBackwardContextSent(options.shape, prefix);
    EXPECT_EQ(round.total() > 0, regather);
    const double wire_s =
        static_cast<double>(rounds) * (static_cast<double>(round.total()) * options.rates[kSent] +
                                       static_cast<double>(round.collectives) * options.rates[kCollective]);
    EXPECT_NEAR(choice->seconds.suffix, slowest_s + wire_s, 1e-9 * choice->seconds.suffix);
    const ContextSentBytes forward = PrefixForwardContextSent(options.shape, prefix);
    EXPECT_EQ(choice->work.prefix_forward[kSent], static_cast<double>(forward.total()));
    EXPECT_EQ(choice->work.prefix_forward[kCollective], static_cast<double>(forward.collectives));
    // Two rows of each prefix are what a rank may have more than another.
    const server::PhaseWork whole = server::ClusterWork(alone, cluster, prefix, v1::S1, 1);
    const double part = choice->work.prefix_backward[kLinear] / whole.prefix_backward[kLinear];
    const auto cp = static_cast<double>(options.shape.cp);
    EXPECT_GE(part, 1 / cp * (1 - 1e-12));
    EXPECT_LE(part, 1 / cp + 2.0 * static_cast<double>(cluster.prefix_rows.size()) / static_cast<double>(prefix.rows));
  }
}

}  // namespace
}  // namespace stemma::testing
