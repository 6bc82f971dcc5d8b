// Programs of a pipeline's stages, expanded from plans and orders that are drawn, against each other; and what the
// orders of a plan must not say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "tests/testing/draw.h"
#include "tests/testing/draw_stages.h"
#include "tests/worker/schedule/programs.h"
#include "worker/schedule/program.h"
#include "worker/schedule/stage_orders.h"

namespace stemma::worker {
namespace {

using testing::CheckPrograms;

using enum OperationKind;
using testing::Draw;
using ::testing::HasSubstr;

struct Sizes {
  int stages = 1, cp_ranks = 1;
};

RankSizes StageSizes(const Sizes& sizes, int stage, int cp_rank) {
  return {.cp_rank = cp_rank,
          .cp_ranks = sizes.cp_ranks,
          .stage = stage,
          .stages = sizes.stages,
          .prefix_rows = {10, 20, 30, 40, 50}};
}

// One copy's clusters, each of one group: with a prefix that is held or gathered again, or dense.
v1::StepPlan DrawStagePlan(Draw& draw, const Sizes& sizes) {
  v1::StepPlan plan;
  for (uint32_t group = 0; group < 5; ++group) {
    v1::Cluster& cluster = *plan.add_clusters();
    if (draw.Chance(70)) cluster.add_prefix_groups(group);
    cluster.set_regather_prefix(draw.Chance(50));
    for (int64_t w = draw.Between(1, 5); w > 0; --w) {
      v1::Wave& wave = *cluster.add_waves();
      wave.set_cp_rank(static_cast<uint32_t>(draw.Between(0, sizes.cp_ranks - 1)));
      wave.add_members()->set_group(group);
    }
  }
  return plan;
}

void DrawOrders(uint32_t seed, const Sizes& sizes, v1::StepPlan& plan) {
  testing::DrawStages(
      seed, MakeMesh({.pp = static_cast<uint32_t>(sizes.stages), .cp = static_cast<uint32_t>(sizes.cp_ranks)}), plan);
}

// In the order of the numbers that exchanges name.
std::vector<Program> ExpandStagesAndRanks(const v1::StepPlan& plan, const Sizes& sizes, bool forward_only) {
  std::vector<Program> programs;
  for (int stage = 0; stage < sizes.stages; ++stage) {
    for (int rank = 0; rank < sizes.cp_ranks; ++rank) {
      programs.push_back(ExpandStep(plan, forward_only, StageSizes(sizes, stage, rank)));
    }
  }
  return programs;
}

class StageProgramTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  StageProgramTest() : draw_(testing::FirstSeed() + GetParam()) {
    sizes_ = {.stages = static_cast<int>(draw_.Between(2, 4)), .cp_ranks = static_cast<int>(draw_.Between(1, 3))};
    plan_ = DrawStagePlan(draw_, sizes_);
    DrawOrders(GetParam(), sizes_, plan_);  // of seed 0 those of backwards first
  }

  Draw draw_;
  Sizes sizes_;
  v1::StepPlan plan_;
};

TEST_P(StageProgramTest, EachStageRunsEachWaveOnceAndNobodyWaitsForEver) {
  SCOPED_TRACE(testing::FirstSeed() + GetParam());
  for (const bool forward_only : {false, true}) {
    EXPECT_EQ(CheckStageOrders(plan_, forward_only, StageSizes(sizes_, 0, 0)), absl::OkStatus());
    const std::vector<Program> programs = ExpandStagesAndRanks(plan_, sizes_, forward_only);
    const auto peaks = CheckPrograms(programs, forward_only);
    ASSERT_TRUE(peaks.ok()) << peaks.status();
    std::map<std::tuple<OperationKind, int, int>, int> ran;
    for (const Program& program : programs) {
      for (const Operation& operation : program) ++ran[{operation.kind, operation.cluster, operation.wave}];
    }
    for (int c = 0; c < plan_.clusters_size(); ++c) {
      for (int w = 0; w < plan_.clusters(c).waves_size(); ++w) {
        EXPECT_EQ((ran[{kWaveForward, c, w}]), sizes_.stages) << "cluster " << c << ", wave " << w;
        EXPECT_EQ((ran[{kWaveBackward, c, w}]), forward_only ? 0 : sizes_.stages) << "cluster " << c << ", wave " << w;
      }
    }
  }
}

// What is left out of one rank's program, or runs twice there, is found whatever it is.
TEST_P(StageProgramTest, AnOperationThatIsLostOrDoubledIsFound) {
  SCOPED_TRACE(testing::FirstSeed() + GetParam());
  const std::vector<Program> programs = ExpandStagesAndRanks(plan_, sizes_, false);
  for (int i = 0; i < 10; ++i) {
    const auto rank = static_cast<size_t>(draw_.Between(0, static_cast<int64_t>(programs.size()) - 1));
    if (programs[rank].empty()) continue;
    const int64_t at = draw_.Between(0, static_cast<int64_t>(programs[rank].size()) - 1);
    if (programs[rank][static_cast<size_t>(at)].kind == kIdle) continue;
    std::vector<Program> lost = programs, doubled = programs;
    lost[rank].erase(lost[rank].begin() + at);
    doubled[rank].insert(doubled[rank].begin() + at, programs[rank][static_cast<size_t>(at)]);
    EXPECT_FALSE(CheckPrograms(lost, false).ok()) << "rank " << rank << ", operation " << at;
    EXPECT_FALSE(CheckPrograms(doubled, false).ok()) << "rank " << rank << ", operation " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, StageProgramTest, ::testing::Range(0U, 150U));

// One cluster of two waves on two stages.
v1::StepPlan TwoStagePlan(const std::string& first, const std::string& second) {
  v1::StepPlan plan;
  v1::Cluster& cluster = *plan.add_clusters();
  cluster.add_prefix_groups(0);
  cluster.add_waves();
  cluster.add_waves();
  v1::CopyStages& stages = *plan.add_copies();
  stages.add_orders(first);
  stages.add_orders(second);
  return plan;
}

TEST(StageOrderTest, ARankRunsItsStagesOrder) {
  const v1::StepPlan plan = TwoStagePlan("AFFBBC", "AFBFBC");
  EXPECT_EQ(Text(ExpandStep(plan, false, StageSizes({.stages = 2}, 0, 0))),
            "PrefixForward(cluster 0) WaveForward(cluster 0, wave 0) WaveForward(cluster 0, wave 1) "
            "WaveBackward(cluster 0, wave 0) WaveBackward(cluster 0, wave 1) PrefixBackward(cluster 0)");
  const Program second = ExpandStep(plan, false, StageSizes({.stages = 2}, 1, 0));
  EXPECT_EQ(second[2].kind, kWaveBackward);
  EXPECT_EQ(second[1].input.rank, 0);
  EXPECT_EQ(second[1].input.tensor, "hidden of cluster 0, wave 0");
  EXPECT_FALSE(second[1].output.exists()) << "the last stage has the head";
  EXPECT_FALSE(second[2].input.exists());
  EXPECT_EQ(second[2].output.tensor, "gradient of cluster 0, wave 0");
  const auto peaks = CheckPrograms(ExpandStagesAndRanks(plan, {.stages = 2}, false), false);
  ASSERT_TRUE(peaks.ok()) << peaks.status();
  EXPECT_EQ((*peaks)[0].live_waves, 2);
  EXPECT_EQ((*peaks)[1].live_waves, 1);
}

// Where a cluster begins the ranks of a stage agree whether it is cancelled, those too that run nothing in its rounds.
TEST(StageOrderTest, ARankWithoutAWaveHearsWhereItsClusterBegins) {
  const Sizes sizes = {.stages = 2, .cp_ranks = 2};
  v1::StepPlan plan;
  for (int c = 0; c < 2; ++c) plan.add_clusters()->add_waves();  // of rank 0 alone, without a prefix
  DrawOrders(0, sizes, plan);
  const Program other = ExpandStep(plan, false, StageSizes(sizes, 0, 1));
  EXPECT_EQ(Text(other), "Idle(cluster 0, wave 0) Idle(cluster 1, wave 0)");
  EXPECT_FALSE(other[0].input.exists() || other[0].output.exists());
  EXPECT_TRUE(ExpandStep(plan, false, StageSizes({.cp_ranks = 2}, 0, 1)).empty()) << "one stage asks at the end";
}

TEST(StageOrderTest, StagesThatWaitForEachOtherAreFound) {
  const v1::StepPlan plan = TwoStagePlan("AFBFBC", "AFFBBC");
  EXPECT_THAT(std::string(CheckStageOrders(plan, false, StageSizes({.stages = 2}, 0, 0)).message()),
              HasSubstr("wait for each other for ever: stage 0 at operation 2, B, stage 1 at operation 2, F"));
  ExpectRefused(ExpandStagesAndRanks(plan, {.stages = 2}, false), "wait for each other for ever");
}

TEST(StageOrderTest, AMessageOfAnotherWaveIsFound) {
  std::vector<Program> programs = ExpandStagesAndRanks(TwoStagePlan("AFFBBC", "AFBFBC"), {.stages = 2}, false);
  std::swap(programs[0][1], programs[0][2]);
  ExpectRefused(programs, "it receives hidden of cluster 0, wave 0, and hidden of cluster 0, wave 1 was sent");
}

TEST(StageOrderTest, WhatAPlanMustNotSay) {
  const auto problem = [](const v1::StepPlan& plan, bool forward_only = false) {
    return std::string(CheckStageOrders(plan, forward_only, StageSizes({.stages = 2}, 0, 0)).message());
  };
  EXPECT_EQ(problem(TwoStagePlan("AFFBBC", "AFBFBC")), "");
  EXPECT_EQ(problem(TwoStagePlan("AFFBBC", "AFBFB")),
            "copies: copy 0: stage 1's order does not run each B and C of the copy's clusters once, in their order");
  EXPECT_THAT(problem(TwoStagePlan("FAFBBC", "AFBFBC")), HasSubstr("stage 0's order does not run each A and F"));
  EXPECT_THAT(problem(TwoStagePlan("AFFBBCX", "AFBFBC")), HasSubstr("stage 0's order"));
  EXPECT_THAT(problem(TwoStagePlan("AFFBBC", "ABFFBC")), HasSubstr("wait for each other for ever"));
  v1::StepPlan plan = TwoStagePlan("AFFBBC", "AFBFBC");
  plan.mutable_copies(0)->add_orders("AFBFBC");
  EXPECT_EQ(problem(plan), "copies: copy 0: it has 3 orders: there are 2 stages");
  v1::StepPlan one_order = TwoStagePlan("AFFBBC", "");
  one_order.mutable_copies(0)->mutable_orders()->RemoveLast();
  one_order = v1::StepPlan(one_order);  // without the room of the order that is gone
  EXPECT_EQ(problem(one_order), "copies: copy 0: it has 1 orders: there are 2 stages");
  EXPECT_TRUE(ExpandStep(one_order, false, StageSizes({.stages = 2}, 1, 0)).empty()) << "a plan is expanded first";
  v1::StepPlan no_waves = TwoStagePlan("AC", "CA");
  no_waves.mutable_clusters(0)->clear_waves();
  EXPECT_THAT(problem(no_waves), HasSubstr("wait for each other for ever: stage 0 at operation 1, C, stage 1 at"));
  plan.clear_copies();
  EXPECT_EQ(problem(plan), "copies: no order of the stages of copy 0");
  EXPECT_EQ(problem(plan, /*forward_only=*/true), "");
  EXPECT_EQ(CheckStageOrders(plan, false, {}), absl::OkStatus()) << "one stage has no order";
}

// Two clusters, of which copies share the first one's group or the second one's.
TEST(StageOrderTest, AGroupThatCopiesShareStandsAlone) {
  const auto problem = [](int shared, const std::string& first, const std::string& second) {
    v1::StepPlan plan = TwoStagePlan(first, second);
    *plan.add_clusters() = plan.clusters(0);
    shared == 0 ? plan.mutable_clusters(0)->add_helper_ranks(1) : plan.mutable_clusters(1)->set_owner_rank(1);
    return std::string(CheckStageOrders(plan, false, StageSizes({.stages = 2}, 0, 0)).message());
  };
  const std::string alone = "AFFBBCAFFBBC", beside = "AFFBBACFFBBC", last = "AFBFBCAFBFBC";
  for (const int shared : {0, 1}) {
    EXPECT_EQ(problem(shared, alone, last), "");
    const std::string cluster = absl::StrCat("cluster ", shared, ", whose group copies share");
    EXPECT_THAT(problem(shared, beside, last), HasSubstr(absl::StrCat("stage 0's order runs ", cluster)));
    EXPECT_THAT(problem(shared, alone, "AFBFBACFBFBC"), HasSubstr(absl::StrCat("stage 1's order runs ", cluster)));
  }
}

}  // namespace
}  // namespace stemma::worker
