// Which rollouts context-parallel ranks cut by rows, over drawn groups, budgets and rates; and what a plan counts of
// it.
#include "server/planner/cut_rollouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/cost/context_parallel_cost.h"
#include "server/planner/member_dealing.h"
#include "server/planner/memory_chooser.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;
using testing::BenchModel;
using ::testing::HasSubstr;
using testing::OneGroup;

MemoryOptions SharedMemory(int64_t cp, int64_t budget_bytes = kNoLimit) {
  MemoryOptions options = BenchMemory(budget_bytes);
  options.shape.cp = cp;
  return options;
}

// One group of drawn lengths, with a prefix or without.
ClusterShape DrawGroup(std::mt19937_64& random) {
  ClusterShape cluster = OneGroup(static_cast<int64_t>(random() % 3) * 300, 1, 1 + static_cast<int64_t>(random() % 9));
  for (MemberShape& member : cluster.members) member.rows = 1 + static_cast<int64_t>(random() % 2000);
  return cluster;
}

std::vector<int64_t> RowsOf(const ClusterShape& cluster, bool cut) {
  std::vector<int64_t> rows;
  for (const MemberShape& member : cluster.members) {
    if (member.is_cut() == cut) rows.push_back(member.rows);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// The cluster with the shortest of its cut rollouts whole again, and others of their length.
ClusterShape WithOneLengthLess(const ClusterShape& cut) {
  ClusterShape less = cut;
  const int64_t shortest = RowsOf(cut, /*cut=*/true).front();
  for (MemberShape& member : less.members) {
    if (member.rows == shortest) member.cut_ranks = 1;
  }
  return less;
}

TEST(CutRolloutsTest, AsFewOfTheLongestAreCutAsItTakesToFit) {
  int cut_some = 0, cut_all = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawGroup(random);
    MemoryOptions options = SharedMemory(2 + static_cast<int64_t>(seed % 3));
    options.forward_only = seed % 5 == 4;
    const int64_t least = FewestBytes(options, WithAllCut(options, cluster)), whole = FewestBytes(options, cluster);
    EXPECT_EQ(least, whole) << "the fewest bytes are those of what can be cut";
    options.budget_bytes = least + static_cast<int64_t>(random() % static_cast<uint64_t>(least));
    const auto cut = CutToFit(options, cluster);
    const std::vector<int64_t> of_cluster = RowsOf(cluster, /*cut=*/false);
    if (!cut) {
      EXPECT_LT(of_cluster.back(), 2 * options.shape.cp) << "there is something to cut, and the least fits";
      continue;
    }
    const std::vector<int64_t> rows = RowsOf(*cut, /*cut=*/true), kept = RowsOf(*cut, /*cut=*/false);
    ASSERT_FALSE(rows.empty());
    if (!kept.empty()) {
      EXPECT_LT(kept.back(), rows.front()) << "a longer one stays whole";
    }
    MemoryChooser chooser(options);
    const auto choice = chooser.Choose(cluster);
    ASSERT_NE(choice, nullptr);
    EXPECT_LE(choice->peak_bytes, options.budget_bytes);
    ++(kept.empty() ? cut_all : cut_some);
    if (rows.front() == rows.back()) continue;
    MemoryOptions held = options;
    const ClusterShape less = WithOneLengthLess(*cut);
    const auto fits_with_less = CutToFit(held, less);
    EXPECT_TRUE(!fits_with_less || RowsOf(*fits_with_less, true) == rows) << "one length less would have done";
  }
  EXPECT_GT(cut_some, 20);
  EXPECT_GT(cut_all, 20);
}

TEST(CutRolloutsTest, WhatCannotBeCutStaysWhole) {
  const auto none = [](const MemoryOptions& options, const ClusterShape& cluster) {
    EXPECT_EQ(WithAllCut(options, cluster), cluster);
    EXPECT_FALSE(CutToBalance(options, cluster).has_value());
    MemoryOptions nothing = options;
    nothing.budget_bytes = 1;
    EXPECT_FALSE(CutToFit(nothing, cluster).has_value());
  };
  none(SharedMemory(1), OneGroup(300, 900, 1));                   // one rank
  none(SharedMemory(2), OneGroup(300, 900, 1, /*reuse=*/false));  // a trajectory with a prefix of its own
  none(SharedMemory(4), OneGroup(300, 7, 1));                     // fewer rows than two for each rank
  none(SharedMemory(2), testing::MixedCluster());                 // several prefixes: it can be divided
  EXPECT_EQ(RowsOf(WithAllCut(SharedMemory(4), OneGroup(0, 8, 1)), true), std::vector<int64_t>{8}) << "P = 1";
}

TEST(CutRolloutsTest, RanksThatWouldWaitShareTheLongestRollouts) {
  const MemoryOptions options = SharedMemory(4);
  // Fewer rollouts than ranks; one long tail; and what is even anyway.
  const auto one = CutToBalance(options, OneGroup(300, 900, 1));
  ASSERT_TRUE(one.has_value());
  EXPECT_TRUE(one->members[0].is_cut());
  ClusterShape tail = OneGroup(300, 200, 12);
  tail.members[5].rows = 3000;
  const auto cut = CutToBalance(options, tail);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(RowsOf(*cut, true), std::vector<int64_t>{3000});
  EXPECT_FALSE(CutToBalance(options, OneGroup(300, 200, 12)).has_value());
  MemoryOptions tight = options;
  tight.budget_bytes = 1;
  EXPECT_EQ(*CutToBalance(tight, tail), *cut) << "whatever the memory";
}

TEST(CutRolloutsTest, DrawnGroupsAreMostlyEvenAfterwards) {
  int uneven = 0, evened = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawGroup(random);
    const MemoryOptions options = SharedMemory(2 + static_cast<int64_t>(seed % 3));
    const int64_t cp = options.shape.cp;
    const double before = DealtImbalance(BenchModel(), cluster.members, cp);
    EXPECT_GE(before, 1 - 1e-12);
    const auto cut = CutToBalance(options, cluster);
    if (before <= 1.05 || RowsOf(cluster, false).back() < 2 * cp) {
      EXPECT_FALSE(cut.has_value());
    }
    uneven += before > 1.05;
    if (!cut) continue;
    const double after = DealtImbalance(BenchModel(), cut->members, cp);
    EXPECT_LT(after, before);
    evened += after <= 1.05;
    const std::vector<int64_t> rows = RowsOf(*cut, true), kept = RowsOf(*cut, false);
    if (!kept.empty()) {
      EXPECT_LT(kept.back(), rows.front()) << "a longer one stays whole";
    }
  }
  EXPECT_GT(evened, 4 * uneven / 5) << "of " << uneven;
}

// Another formula of the imbalance: members that are cut as so many of a part each.
TEST(CutRolloutsTest, AnImbalanceIsThatOfTheRankWithMost) {
  ClusterShape cluster = OneGroup(300, 100, 3);
  const double one = MemberFlops(BenchModel(), cluster.members[0]);
  EXPECT_NEAR(DealtImbalance(BenchModel(), cluster.members, 2), 2 * one / (1.5 * one), 1e-12);
  cluster.members[1].cut_ranks = 2;
  EXPECT_NEAR(DealtImbalance(BenchModel(), cluster.members, 2), 1, 1e-12);
  EXPECT_NEAR(DealtImbalance(BenchModel(), cluster.members, 1), 1, 1e-12);
}

TEST(CutRolloutsTest, ItIsDoneWhereItIsFasterAndNotWhereLinksCostMore) {
  MemoryOptions options = SharedMemory(2);
  const ClusterShape cluster = OneGroup(300, 1500, 1);
  const auto fast = MemoryChooser(options).Choose(cluster);
  ASSERT_NE(fast, nullptr);
  EXPECT_EQ(fast->cut_waves, 1U);
  EXPECT_THAT(MemoryReason(options, *fast), HasSubstr("1 rollout cut by rows over 2 ranks"));
  options.rates[kContextByte] = 1e-6;
  const auto slow = MemoryChooser(options).Choose(cluster);
  ASSERT_NE(slow, nullptr);
  EXPECT_EQ(slow->cut_waves, 0U);
  EXPECT_TRUE(slow->cheapest);
}

// Each rank has its part of the products of rows that divide, and of the pairs; what travels is the formula's.
TEST(CutRolloutsTest, ARankHasItsPartOfTheWork) {
  for (const int64_t cp : {2, 3, 4}) {
    SCOPED_TRACE(cp);
    const MemoryOptions options = SharedMemory(cp);
    const int64_t prefix = 500, rows = 2 * cp * 120;
    const ClusterShape whole = OneGroup(prefix, rows, 1), cut = WithAllCut(options, whole);
    ByteShape alone = options.shape;
    alone.cp = 1;
    const ClusterWorkSums of_one(alone, whole), shared(options.shape, cut, {0});
    ASSERT_EQ(shared.num_ranks(), static_cast<size_t>(cp));
    const auto ranks = static_cast<double>(cp);
    for (size_t rank = 0; rank < shared.num_ranks(); ++rank) {
      const Work work = shared.Suffix(v1::S4, 1, rank), of_all = of_one.Suffix(v1::S4, 1);
      EXPECT_NEAR(work[kLinear], of_all[kLinear] / ranks, 1e-9 * work[kLinear]);
      EXPECT_NEAR(work[kHead], of_all[kHead] / ranks, 1e-9 * work[kHead]);
      // Zigzag pieces have the same pairs on every rank.
      EXPECT_NEAR(work[kAttentionBackward], of_all[kAttentionBackward] / ranks, 1e-9 * work[kAttentionBackward]);
      ContextSentBytes sent = CutForwardContextSent(options.shape, rows);
      EXPECT_EQ(shared.SuffixForwardOfStep(1, rank)[kContextByte], static_cast<double>(sent.total()));
      sent += CutBackwardContextSent(options.shape, rows);
      EXPECT_EQ(work[kContextByte], static_cast<double>(sent.total()));
      EXPECT_EQ(work[kContextCollective], static_cast<double>(sent.collectives));
      EXPECT_EQ(sent.collectives, 3 * BenchModel().num_layers + 1);
    }
  }
}

}  // namespace
}  // namespace stemma::server
