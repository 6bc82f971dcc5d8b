// How K/V of a shared prefix are kept where context-parallel ranks compute its cluster: held, or gathered again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/context_parallel_cost.h"
#include "common/cost/state_bytes.h"
#include "server/planner/cluster_ways.h"
#include "server/planner/member_dealing.h"
#include "server/planner/planner.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::kContextByte;
using server::kContextCollective;
using server::kLinear;
using ::testing::HasSubstr;

MemoryOptions MemoryOfRanks(int64_t cp, int64_t budget_bytes = server::kNoLimit) {
  MemoryOptions options = BenchMemory(budget_bytes);
  options.shape.cp = cp;
  return options;
}

// A long prefix whose K/V are most of what there is.
TEST(PrefixKvTest, AreHeldWhereTheyFitAndGatheredAgainBelow) {
  const ClusterShape cluster = OneGroup(16384, 128, 8);
  MemoryOptions options = MemoryOfRanks(4);
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
  for (int i = 0; i < 8; ++i) group.rollouts.push_back({40, true});
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
  MemoryOptions options = MemoryOfRanks(2);
  options.prefix_kv = v1::PREFIX_KV_REGATHER;
  for (const server::MemoryAlternative& way :
       server::ClusterWays(options, OneGroup(700, 100, 4, /*reuse=*/false)).All()) {
    EXPECT_FALSE(way.prefix.regather);
  }
  EXPECT_EQ(server::ClusterWays(options, OneGroup(700, 100, 4)).All().size() * 2,
            server::ClusterWays(MemoryOfRanks(2), OneGroup(700, 100, 4)).All().size());
}

// The invariants of server/planner/memory_choice.h, with ranks that share the cluster.
TEST(PrefixKvTest, ALargerBudgetNeverCostsSeconds) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 3), seed % 4 != 0, random);
    MemoryOptions options = MemoryOfRanks(2 + static_cast<int64_t>(seed % 3));
    options.forward_only = seed % 7 == 6;
    const int64_t fewest = server::FewestBytes(options, cluster);
    double before = std::numeric_limits<double>::infinity();
    size_t cut_before = 0;
    options.budget_bytes = fewest - 1;
    EXPECT_FALSE(server::ChooseMemory(options, cluster).choice.has_value());
    for (int64_t budget = fewest; budget < 8 * fewest; budget += budget / 6) {
      options.budget_bytes = budget;
      const MemoryAnswer answer = server::ChooseMemory(options, cluster);
      ASSERT_TRUE(answer.choice.has_value()) << options.budget_bytes;
      EXPECT_LE(answer.choice->peak_bytes, options.budget_bytes);
      // Ranks count as even where they differ by 5 %, and whole rollouts are kept for 2 %.
      const double may_cost = answer.choice->cut_waves == cut_before ? 1 + 1e-12 : 1.05 / 0.98;
      EXPECT_LE(answer.choice->seconds.total(), before * may_cost) << options.budget_bytes;
      cut_before = answer.choice->cut_waves;
      before = answer.choice->seconds.total();
      // It is the fastest of all ways, evaluated one by one.
      if (seed % 8 != 0) continue;
      for (const server::MemoryAlternative& way : server::ClusterWays(options, cluster).All()) {
        const std::optional<server::MemoryChoice> other = server::ClusterWays(options, cluster).Evaluate(way);
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
    MemoryOptions options = MemoryOfRanks(2 + static_cast<int64_t>(seed % 3));
    options.wave_suffixes = 2;
    const bool regather = seed % 2 == 0;
    PrefixShape prefix = {.rows = PackedPrefixRows(cluster), .lengths = cluster.prefix_rows, .regather = regather};
    const auto choice = server::ClusterWays(options, cluster).Evaluate({.prefix = prefix, .suffix_policy = v1::S1});
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
        static_cast<double>(rounds) * (static_cast<double>(round.total()) * options.rates[kContextByte] +
                                       static_cast<double>(round.collectives) * options.rates[kContextCollective]);
    EXPECT_NEAR(choice->seconds.suffix, slowest_s + wire_s, 1e-9 * choice->seconds.suffix);
    const ContextSentBytes forward = PrefixForwardContextSent(options.shape, prefix);
    EXPECT_EQ(choice->work.prefix_forward[kContextByte], static_cast<double>(forward.total()));
    EXPECT_EQ(choice->work.prefix_forward[kContextCollective], static_cast<double>(forward.collectives));
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
