// Programs of one rank, expanded from plans; programs of several, written by hand, against each other: what is right
// passes, and each seeded fault is refused by name.
#include "worker/schedule/program.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/worker/schedule/programs.h"

namespace stemma::worker {
namespace {

using testing::CheckPrograms;

using enum OperationKind;

v1::StepPlan PlanOf(const std::vector<std::pair<bool, int>>& clusters) {
  v1::StepPlan step;
  for (const auto& [prefix, waves] : clusters) {
    v1::Cluster& cluster = *step.add_clusters();
    if (prefix) cluster.add_prefix_groups(0);
    for (int w = 0; w < waves; ++w) cluster.add_waves();
  }
  return step;
}

TEST(ExpandStepTest, PhasesSurroundTheWavesOfACluster) {
  const v1::StepPlan step = PlanOf({{true, 2}, {false, 1}});
  EXPECT_EQ(Text(ExpandStep(step, /*forward_only=*/false)),
            "PrefixForward(cluster 0) WaveForward(cluster 0, wave 0) WaveBackward(cluster 0, wave 0) "
            "WaveForward(cluster 0, wave 1) WaveBackward(cluster 0, wave 1) PrefixBackward(cluster 0) "
            "WaveForward(cluster 1, wave 0) WaveBackward(cluster 1, wave 0)");
  EXPECT_EQ(Text(ExpandStep(step, /*forward_only=*/true)),
            "PrefixForward(cluster 0) WaveForward(cluster 0, wave 0) WaveForward(cluster 0, wave 1) "
            "WaveForward(cluster 1, wave 0)");
}

TEST(CheckProgramsTest, WhatAPlanExpandsToPassesAndHoldsOneWaveAndOneHotSet) {
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::pair<bool, int>> clusters;
    for (uint32_t c = random() % 5; c > 0; --c)
      clusters.push_back({random() % 2 == 0, 1 + static_cast<int>(random() % 4)});
    for (const bool forward_only : {false, true}) {
      const Program program = ExpandStep(PlanOf(clusters), forward_only);
      const auto peaks = CheckPrograms({program}, forward_only);
      ASSERT_TRUE(peaks.ok()) << peaks.status() << "\n" << Text(program);
      EXPECT_LE(peaks->front().live_waves, 1);
      if (!forward_only) {
        EXPECT_LE(peaks->front().live_clusters, 1);
      }
    }
  }
}

Operation Between(OperationKind kind, std::vector<int> ranks, std::string tensor, int64_t bytes = 64) {
  return {.kind = kind, .exchange = {std::move(ranks), std::move(tensor), bytes}};
}

// 1F1B: the first stage holds the tapes of two waves at once, the second of one.
std::vector<Program> TwoStages() {
  const auto send = [](int from, int to, const std::string& tensor) { return Between(kSend, {from, to}, tensor); };
  const auto receive = [](int from, int to, const std::string& tensor) {
    return Between(kReceive, {from, to}, tensor);
  };
  return {{Of(kWaveForward, 0, 0), send(0, 1, "y0"), Of(kWaveForward, 0, 1), send(0, 1, "y1"), receive(1, 0, "dy0"),
           Of(kWaveBackward, 0, 0), receive(1, 0, "dy1"), Of(kWaveBackward, 0, 1), Between(kReduce, {0, 1}, "norm")},
          {receive(0, 1, "y0"), Of(kWaveForward, 0, 0), receive(0, 1, "y1"), Of(kWaveBackward, 0, 0), send(1, 0, "dy0"),
           Of(kWaveForward, 0, 1), Of(kWaveBackward, 0, 1), send(1, 0, "dy1"), Between(kReduce, {0, 1}, "norm")}};
}

TEST(CheckProgramsTest, ProgramsOfTwoRanksRunAgainstEachOther) {
  const auto peaks = CheckPrograms(TwoStages(), /*forward_only=*/false);
  ASSERT_TRUE(peaks.ok()) << peaks.status();
  EXPECT_EQ((*peaks)[0].live_waves, 2);
  EXPECT_EQ((*peaks)[1].live_waves, 1);
}

TEST(CheckProgramsTest, SeveralClustersMayBeLive) {
  const Program program = {Of(kPrefixForward, 0),  Of(kPrefixForward, 1), Of(kWaveForward, 0),
                           Of(kWaveForward, 1),    Of(kWaveBackward, 0),  Of(kWaveBackward, 1),
                           Of(kPrefixBackward, 0), Of(kPrefixBackward, 1)};
  const auto peaks = CheckPrograms({program}, false);
  ASSERT_TRUE(peaks.ok()) << peaks.status();
  EXPECT_EQ(peaks->front().live_waves, 2);
  EXPECT_EQ(peaks->front().live_clusters, 2);
}

TEST(CheckProgramsTest, AWrongOrderOfOneRankIsRefused) {
  ExpectRefused({{Of(kWaveForward), Of(kPrefixForward), Of(kWaveBackward), Of(kPrefixBackward)}},
                "rank 0, operation 0, WaveForward(cluster 0, wave 0): its cluster has no hot set now");
  ExpectRefused({{Of(kWaveBackward)}}, "its forward has left no tape");
  ExpectRefused({{Of(kWaveForward), Of(kWaveBackward), Of(kWaveBackward)}}, "it ran before");
  ExpectRefused({{Of(kWaveForward)}}, "the tape of a wave is never consumed");
  ExpectRefused({{Of(kPrefixForward)}}, "the hot set of a cluster is never consumed");
  ExpectRefused({{Of(kPrefixForward), Of(kWaveForward), Of(kPrefixBackward)}}, "wave 0 of its cluster still waits");
  ExpectRefused({{Of(kPrefixForward), Of(kPrefixBackward), Of(kWaveForward)}}, "its cluster has no hot set now");
  ExpectRefused({{Of(kPrefixBackward)}}, "its cluster has no hot set now");
  ExpectRefused({{Of(kWaveForward), Of(kWaveBackward)}}, "a backward in a forward-only pass", /*forward_only=*/true);
}

TEST(CheckProgramsTest, AMismatchOfExchangesIsRefused) {
  std::vector<Program> other_bytes = TwoStages();
  other_bytes[1].back().exchange.bytes = 32;
  ExpectRefused(other_bytes,
                "rank 0 waits at Reduce(\"norm\", 64 bytes, ranks 0 1); rank 1 waits at Reduce(\"norm\", 32");
  std::vector<Program> other_order = TwoStages();
  std::swap(other_order[0][1], other_order[0][3]);
  ExpectRefused(other_order, "the ranks wait for each other for ever");
  std::vector<Program> missing = TwoStages();
  missing[1].pop_back();
  ExpectRefused(missing, "rank 1 has ended");
  std::vector<Program> other_kind = TwoStages();
  other_kind[1].back().kind = kGather;
  ExpectRefused(other_kind, "for ever");
  ExpectRefused({{Between(kReduce, {1}, "x")}, {}}, "this rank is none of its ranks");
  ExpectRefused({{Between(kReduce, {0, 5}, "x")}}, "it names a rank that does not exist");
}

// Every swap of two neighbouring exchanges of one rank, and every lost one, is either harmless by the rules or refused;
// none is passed over: lost ones never pass.
TEST(CheckProgramsTest, ALostExchangeNeverPasses) {
  const std::vector<Program> right = TwoStages();
  for (size_t rank = 0; rank < right.size(); ++rank) {
    for (size_t i = 0; i < right[rank].size(); ++i) {
      if (right[rank][i].exchange.tensor.empty()) continue;
      std::vector<Program> lost = right;
      lost[rank].erase(lost[rank].begin() + static_cast<int64_t>(i));
      EXPECT_FALSE(CheckPrograms(lost, false).ok()) << "rank " << rank << ", " << OperationText(right[rank][i]);
    }
  }
}

}  // namespace
}  // namespace stemma::worker
