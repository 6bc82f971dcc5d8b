// Programs of context-parallel ranks, expanded from plans that are drawn, against each other; and what a plan of such
// ranks must not say.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/schedule/programs.h"
#include "worker/schedule/context_ranks.h"
#include "worker/schedule/program.h"

namespace stemma::worker {
namespace {

using testing::CheckPrograms;

using enum OperationKind;

RankSizes ContextSizes(int copy, int copies, int cp_rank, int cp_ranks) {
  return {.copy = copy,
          .num_copies = copies,
          .cp_rank = cp_rank,
          .cp_ranks = cp_ranks,
          .kv_row_bytes = 64,
          .gradient_row_bytes = 128,
          .prefix_rows = {10, 20, 30, 40, 50}};
}

// One copy's clusters, each of one group: with a prefix that is held or gathered again, or dense.
v1::StepPlan DrawContextPlan(std::mt19937& random, uint32_t cp_ranks) {
  v1::StepPlan plan;
  for (uint32_t group = 0; group < 5; ++group) {
    v1::Cluster& cluster = *plan.add_clusters();
    if (random() % 3 > 0) cluster.add_prefix_groups(group);
    cluster.set_regather_prefix(random() % 2 == 0);
    for (uint32_t w = 0; w < random() % 3; ++w) {
      v1::Wave& wave = *cluster.add_waves();
      wave.set_cut_rows(true);
      wave.add_members()->set_group(group);
    }
    for (uint32_t w = 0; w < 1 + random() % 5; ++w) {
      v1::Wave& wave = *cluster.add_waves();
      wave.set_cp_rank(random() % cp_ranks);
      wave.add_members()->set_group(group);
    }
  }
  return plan;
}

std::vector<Program> ExpandContext(const v1::StepPlan& plan, int cp_ranks, bool forward_only) {
  std::vector<Program> programs;
  for (int rank = 0; rank < cp_ranks; ++rank) {
    programs.push_back(ExpandStep(plan, forward_only, ContextSizes(0, 1, rank, cp_ranks)));
  }
  return programs;
}

// Rank 0 has two waves and rank 1 has one.
v1::StepPlan TwoAndOne(bool regather) {
  v1::StepPlan plan;
  v1::Cluster& cluster = *plan.add_clusters();
  cluster.add_prefix_groups(0);
  cluster.set_regather_prefix(regather);
  for (const uint32_t rank : {0, 0, 1}) cluster.add_waves()->set_cp_rank(rank);
  return plan;
}

std::vector<OperationKind> KindsOf(const Program& program) {
  std::vector<OperationKind> kinds;
  for (const Operation& operation : program) kinds.push_back(operation.kind);
  return kinds;
}

TEST(ContextProgramTest, DrawnPlansRunEachWaveOnceOrOnAllRanksAndNobodyWaitsForEver) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const int cp_ranks = 2 + static_cast<int>(random() % 4);
    const v1::StepPlan plan = DrawContextPlan(random, static_cast<uint32_t>(cp_ranks));
    for (const bool forward_only : {false, true}) {
      const std::vector<Program> programs = ExpandContext(plan, cp_ranks, forward_only);
      const auto peaks = CheckPrograms(programs, forward_only);
      ASSERT_TRUE(peaks.ok()) << "seed " << seed << ": " << peaks.status();
      std::map<std::pair<int, int>, int> ran;
      for (const Program& program : programs) {
        for (const Operation& operation : program) {
          if (operation.kind == kWaveForward) ++ran[{operation.cluster, operation.wave}];
        }
      }
      for (int c = 0; c < plan.clusters_size(); ++c) {
        for (int w = 0; w < plan.clusters(c).waves_size(); ++w) {
          const int ranks = plan.clusters(c).waves(w).cut_rows() ? cp_ranks : 1;
          EXPECT_EQ((ran[{c, w}]), ranks) << "seed " << seed << ", cluster " << c << ", wave " << w;
        }
      }
    }
  }
}

TEST(ContextProgramTest, RanksThatHoldAllRowsRunTheirWavesAlone) {
  const std::vector<Program> both = ExpandContext(TwoAndOne(/*regather=*/false), 2, false);
  EXPECT_EQ(KindsOf(both[0]),
            (std::vector{kPrefixForward, kWaveForward, kWaveBackward, kWaveForward, kWaveBackward, kPrefixBackward}));
  EXPECT_EQ(KindsOf(both[1]), (std::vector{kPrefixForward, kWaveForward, kWaveBackward, kPrefixBackward}));
  EXPECT_TRUE(both[0][1].exchange.ranks.empty()) << "nothing is exchanged in a wave";
}

TEST(ContextProgramTest, WhereRowsAreGatheredAgainARankWithoutAWaveJoinsIn) {
  const std::vector<Program> both = ExpandContext(TwoAndOne(/*regather=*/true), 2, false);
  EXPECT_EQ(KindsOf(both[0]),
            (std::vector{kPrefixForward, kWaveForward, kWaveBackward, kWaveForward, kWaveBackward, kPrefixBackward}));
  EXPECT_EQ(KindsOf(both[1]),
            (std::vector{kPrefixForward, kWaveForward, kWaveBackward, kJoinForward, kJoinBackward, kPrefixBackward}));
  EXPECT_EQ(OperationText(both[1][3]), "JoinForward(cluster 0, wave 1)");
  EXPECT_EQ(both[0][3].exchange.tensor, "round forward 1 of cluster 0");
  EXPECT_EQ(both[1][3].exchange, both[0][3].exchange);
}

// Held or not: all ranks run it, in its place, and each its own waves after it.
TEST(ContextProgramTest, AWaveThatIsCutIsEveryRanks) {
  v1::StepPlan plan = TwoAndOne(/*regather=*/false);
  plan.mutable_clusters(0)->mutable_waves(0)->set_cut_rows(true);
  const std::vector<Program> both = ExpandContext(plan, 2, false);
  for (const Program& program : both) {
    EXPECT_EQ(KindsOf(program),
              (std::vector{kPrefixForward, kWaveForward, kWaveBackward, kWaveForward, kWaveBackward, kPrefixBackward}));
    EXPECT_EQ(program[1].wave, 0);
    EXPECT_EQ(program[1].exchange, both[0][1].exchange);
    EXPECT_EQ(program[1].exchange.ranks, (std::vector{0, 1}));
    EXPECT_TRUE(program[3].exchange.ranks.empty());
  }
  EXPECT_EQ(both[0][3].wave, 1);
  EXPECT_EQ(both[1][3].wave, 2);
  std::vector<Program> apart = both;
  std::swap(apart[1][1], apart[1][3]);
  std::swap(apart[1][2], apart[1][4]);
  EXPECT_TRUE(CheckPrograms(apart, false).ok()) << "a cut wave may stand anywhere if all agree";
  std::erase_if(apart[1],
                [](const Operation& operation) { return operation.wave == 0 && operation.kind == kWaveForward; });
  EXPECT_FALSE(CheckPrograms(apart, false).ok());
}

TEST(ContextProgramTest, ARankThatDoesNotJoinIsFound) {
  std::vector<Program> both = ExpandContext(TwoAndOne(/*regather=*/true), 2, false);
  std::erase_if(both[1], [](const Operation& operation) { return operation.kind == kJoinBackward; });
  const auto peaks = CheckPrograms(both, false);
  ASSERT_FALSE(peaks.ok());
  EXPECT_NE(peaks.status().message().find("wait for each other for ever"), std::string::npos) << peaks.status();
}

TEST(ContextProgramTest, PhaseCBeforeTheLastWaveIsFound) {
  std::vector<Program> both = ExpandContext(TwoAndOne(/*regather=*/true), 2, false);
  for (Program& program : both) std::swap(program[program.size() - 1], program[program.size() - 2]);
  const auto peaks = CheckPrograms(both, false);
  ASSERT_FALSE(peaks.ok());
  EXPECT_NE(peaks.status().message().find("still waits for its backward"), std::string::npos) << peaks.status();
}

TEST(ContextProgramTest, SplitGroupsAreExchangedByRanksOfEqualPlace) {
  std::vector<v1::StepPlan> plans(2);
  for (uint32_t copy = 0; copy < 2; ++copy) {
    v1::Cluster& cluster = *plans[copy].add_clusters();
    cluster.set_dp_rank(copy);
    cluster.add_prefix_groups(2);
    for (const uint32_t rank : {0, 1, 2}) cluster.add_waves()->set_cp_rank(rank);
  }
  plans[0].mutable_clusters(0)->add_helper_ranks(1);
  plans[1].mutable_clusters(0)->set_owner_rank(0);
  std::vector<Program> programs;
  for (int copy = 0; copy < 2; ++copy) {
    for (int rank = 0; rank < 3; ++rank) {
      programs.push_back(ExpandStep(plans[static_cast<size_t>(copy)], false, ContextSizes(copy, 2, rank, 3)));
    }
  }
  EXPECT_EQ(programs[1][1].exchange.ranks, (std::vector{1, 4}));
  EXPECT_EQ(programs[1][1].peer_copy, 1);
  const auto peaks = CheckPrograms(programs, false);
  EXPECT_TRUE(peaks.ok()) << peaks.status();
}

TEST(ContextRanksTest, WhatAPlanMustNotSay) {
  const auto problem = [](const v1::StepPlan& plan, const RankSizes& sizes) {
    return std::string(CheckContextRanks(plan, sizes).message());
  };
  v1::StepPlan plan = TwoAndOne(/*regather=*/true);
  EXPECT_EQ(problem(plan, ContextSizes(0, 1, 0, 2)), "");
  EXPECT_EQ(problem(plan, ContextSizes(0, 1, 0, 1)), "cluster 0, wave 2: cp_rank is 1: there are 1 ranks");
  plan.mutable_clusters(0)->add_helper_ranks(1);
  EXPECT_EQ(problem(plan, ContextSizes(0, 2, 0, 2)),
            "cluster 0: regather_prefix is set: the ranks of a split group hold all K/V");
  plan = TwoAndOne(/*regather=*/false);
  plan.mutable_clusters(0)->mutable_waves(0)->set_cut_rows(true);
  EXPECT_EQ(problem(plan, ContextSizes(0, 1, 0, 2)), "");
  v1::StepPlan alone = plan;
  alone.mutable_clusters(0)->mutable_waves(2)->set_cp_rank(0);
  EXPECT_EQ(problem(alone, ContextSizes(0, 1, 0, 1)), "cluster 0, wave 0: cut_rows is set: there is one rank");
  plan.mutable_clusters(0)->mutable_waves(2)->set_cut_rows(true);
  EXPECT_EQ(problem(plan, ContextSizes(0, 1, 0, 2)), "cluster 0, wave 2: cut_rows is set and cp_rank is 1: it is 0");
  plan.mutable_clusters(0)->mutable_waves(2)->set_cp_rank(0);
  EXPECT_EQ(problem(plan, ContextSizes(0, 1, 0, 2)),
            "cluster 0, wave 2: cut_rows is set after a wave whose rows are not cut");
  plan = TwoAndOne(/*regather=*/false);
  plan.mutable_clusters(0)->set_prefix_groups(0, 9);
  EXPECT_EQ(problem(plan, ContextSizes(0, 1, 0, 2)),
            "cluster 0: prefix_groups has group 9: not in the payload, or without a prefix");
  plan.mutable_clusters(0)->set_prefix_groups(0, 1);
  RankSizes one_token = ContextSizes(0, 1, 0, 2);
  one_token.prefix_rows = {10, 0};  // group 1 has a prompt of one token
  EXPECT_EQ(problem(plan, one_token), "cluster 0: prefix_groups has group 1: not in the payload, or without a prefix");
}

}  // namespace
}  // namespace stemma::worker
