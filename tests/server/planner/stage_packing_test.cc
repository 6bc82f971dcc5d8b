// Waves of pipeline stages: what is packed for them against what memory alone would decide. Requests, meshes and
// budgets are drawn; STEMMA_SEED draws others.
#include "server/planner/stage_packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "server/planner/memory_division.h"
#include "server/planner/stage_plan.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::PackedCluster, server::PackForStages, server::PackingGroup, server::StagedClusters, server::StageOrders;

constexpr int64_t kPlenty = int64_t{1} << 40;

struct Copy {
  MemoryOptions options;
  std::vector<PlannerGroup> groups;
  std::vector<PackingGroup> packing;

  Copy(uint32_t pp, uint32_t cp, int64_t budget_bytes, bool forward_only = false) {
    ModelConfig model = BenchModel();
    model.max_positions = 4096;
    v1::RunConfig run;
    run.set_dtype("fp32");
    run.set_head_chunk_tokens(512);
    *run.mutable_mesh() = MakeMesh({.pp = pp, .cp = cp});
    options = MemoryOptionsOf(model, run, BenchRates(), forward_only);
    options.budget_bytes = budget_bytes;
    options.rounds_in_flight = forward_only ? 1 : pp;
  }

  void Add(int64_t prompt_tokens, const std::vector<int64_t>& response_tokens, bool reuse) {
    PlannerGroup& group = groups.emplace_back();
    group.uid = absl::StrCat("g", groups.size());
    group.prompt_tokens = prompt_tokens;
    PackingGroup& packed = packing.emplace_back();
    packed.group = static_cast<uint32_t>(groups.size() - 1);
    packed.uid = group.uid;
    packed.prefix_rows = prompt_tokens - 1;
    packed.reuse = reuse && prompt_tokens > 1;
    for (const int64_t rows : response_tokens) {
      packed.members.push_back({static_cast<uint32_t>(group.rollouts.size()), rows});
      group.rollouts.push_back({rows, true});
    }
  }

  absl::StatusOr<StagedClusters> Staged() const {
    MemoryChooser chooser{MemoryOptions(options)};
    return PackForStages(chooser, groups, packing);
  }

  // Returns when the stages end with waves that memory alone decides.
  double EndByMemory() const {
    MemoryChooser chooser{MemoryOptions(options)};
    const auto packed = PackClusters(chooser, packing);
    EXPECT_TRUE(packed.ok()) << packed.status();
    std::vector<const v1::Cluster*> clusters;
    for (const PackedCluster& one : *packed) clusters.push_back(&one.cluster);
    const StageQuestion question = StagesOf(options, groups, clusters);
    return (options.forward_only ? OrderForwards(question) : OrderStages(question)).end_s;
  }
};

int64_t NumWaves(const StagedClusters& staged) {
  int64_t waves = 0;
  for (const PackedCluster& packed : staged.clusters) waves += packed.cluster.waves_size();
  return waves;
}

class StagePackingTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  StagePackingTest() : draw_(FirstSeed() + GetParam()) {}

  Copy DrawCopy() {
    Copy copy(static_cast<uint32_t>(draw_.Between(2, 4)), static_cast<uint32_t>(draw_.Between(1, 2)),
              draw_.Between(0, 1) == 0 ? kPlenty : draw_.Between(150, 400) * (1 << 20), draw_.Between(0, 3) == 0);
    for (int64_t g = draw_.Between(1, 10); g > 0; --g) {
      std::vector<int64_t> responses;
      for (int64_t i = draw_.Between(1, 16); i > 0; --i) responses.push_back(draw_.Between(1, 500));
      copy.Add(draw_.Between(1, 1200), responses, draw_.Between(0, 3) > 0);
    }
    return copy;
  }

  Draw draw_;
};

TEST_P(StagePackingTest, NeverEndsLaterThanByMemoryAlone) {
  SCOPED_TRACE(absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam()));
  const Copy copy = DrawCopy();
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_LE(staged->orders.end_s, copy.EndByMemory());
}

TEST_P(StagePackingTest, EachRolloutRunsOnceWithinTheBudget) {
  SCOPED_TRACE(absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam()));
  const Copy copy = DrawCopy();
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  std::multiset<std::pair<uint32_t, uint32_t>> found, wanted;
  std::vector<const v1::Cluster*> clusters;
  for (const PackedCluster& packed : staged->clusters) {
    clusters.push_back(&packed.cluster);
    for (const v1::Wave& wave : packed.cluster.waves()) {
      EXPECT_GT(wave.members_size(), 0);
      for (const v1::WaveMember& member : wave.members()) found.emplace(member.group(), member.rollout());
    }
  }
  for (const PackingGroup& group : copy.packing) {
    for (const server::PackingMember& member : group.members) wanted.emplace(group.group, member.rollout);
  }
  EXPECT_EQ(found, wanted);
  for (const server::StageRun& run : staged->orders.stages) EXPECT_LE(run.peak_bytes, copy.options.budget_bytes);
  // The orders are those of the clusters, and of no other packing.
  const StageQuestion question = StagesOf(copy.options, copy.groups, clusters);
  const StageOrders again = copy.options.forward_only ? OrderForwards(question) : OrderStages(question);
  EXPECT_EQ(again.end_s, staged->orders.end_s);
}

INSTANTIATE_TEST_SUITE_P(Drawn, StagePackingTest, ::testing::Range(0U, 40U));

// Returns a part of the seconds that the stages take with waves that memory alone decides.
double PartOfTheEndByMemory(const Copy& copy) {
  const auto staged = copy.Staged();
  EXPECT_TRUE(staged.ok()) << staged.status();
  return staged.ok() ? staged->orders.end_s / copy.EndByMemory() : 1;
}

// Memory alone makes one wave of these 16 suffixes, which the stages run one behind the other.
Copy OneWave(uint32_t pp, bool forward_only = false) {
  Copy copy(pp, /*cp=*/1, kPlenty, forward_only);
  copy.Add(/*prompt_tokens=*/129, std::vector<int64_t>(16, 128), /*reuse=*/true);
  return copy;
}

// 8 waves on S stages would take (8 + S - 1) / (8 S) of one wave's time, 0.56 and 0.34, if a wave cost nothing and
// there were no prefix. With both it is 0.68, 0.44 and forward only 0.71: the bounds leave a tenth for other rates.
TEST(StagePackingOfOneWaveTest, IsCutSoThatStagesWorkAtTheSameTime) {
  EXPECT_LT(PartOfTheEndByMemory(OneWave(2)), 0.75);
  EXPECT_LT(PartOfTheEndByMemory(OneWave(4)), 0.49);
  EXPECT_LT(PartOfTheEndByMemory(OneWave(2, /*forward_only=*/true)), 0.78);
}

// Memory alone makes one wave of the two.
TEST(StagePackingOfOneWaveTest, OfTwoSuffixesIsCutBetweenThem) {
  Copy copy(2, /*cp=*/1, kPlenty);
  copy.Add(/*prompt_tokens=*/129, {512, 512}, /*reuse=*/true);
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(NumWaves(*staged), 2);
}

TEST(StagePackingOfOneWaveTest, IsLeftWhereAFurtherWaveCostsMoreThanItGains) {
  Copy copy = OneWave(2);
  copy.options.rates[server::kStageMessage] = 10;  // seconds a message
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(NumWaves(*staged), 1);
  EXPECT_EQ(staged->orders.end_s, copy.EndByMemory());
}

TEST(StagePackingOfOneWaveTest, KeepsTheSizeThatIsForced) {
  Copy copy = OneWave(2);
  copy.options.wave_suffixes = 16;
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(NumWaves(*staged), 1);
}

// Memory alone makes one cluster of them, whose Phase A goes through all stages before the last one has work. Clusters
// of one group leave 0.48 of its time.
TEST(StagePackingOfGroupsTest, ClustersAreMadeSmallerToo) {
  Copy copy(4, /*cp=*/1, kPlenty);
  for (int i = 0; i < 4; ++i) copy.Add(/*prompt_tokens=*/501, std::vector<int64_t>(2, 32), /*reuse=*/true);
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_GT(staged->clusters.size(), 1U);
  EXPECT_LT(PartOfTheEndByMemory(copy), 0.55);
}

TEST(StagePackingOfGroupsTest, ForcedWavesAreNotCalledSmaller) {
  Copy copy(4, /*cp=*/1, kPlenty);
  for (int i = 0; i < 4; ++i) copy.Add(/*prompt_tokens=*/501, std::vector<int64_t>(2, 32), /*reuse=*/true);
  copy.options.wave_suffixes = 2;
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_GT(staged->clusters.size(), 1U);
  for (const PackedCluster& packed : staged->clusters) {
    const std::string reason = MemoryReason(copy.options, packed.memory);
    EXPECT_EQ(reason.find("stages wait less"), std::string::npos) << reason;
  }
}

TEST(StagePackingOfGroupsTest, TheReasonSaysWhyWavesAreSmall) {
  Copy copy = OneWave(2);
  const auto staged = copy.Staged();
  ASSERT_TRUE(staged.ok()) << staged.status();
  const std::string reason = MemoryReason(copy.options, staged->clusters.front().memory);
  EXPECT_NE(reason.find("rows, or of one suffix, so that stages wait less"), std::string::npos) << reason;
}

}  // namespace
}  // namespace stemma::testing
