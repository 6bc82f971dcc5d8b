// How clusters live in the memory of pipeline stages: a way fits if it fits on every stage, with as many rounds of
// waves in flight as the budget allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/rank_shape.h"
#include "server/planner/memory_choice.h"
#include "server/planner/memory_chooser.h"
#include "server/planner/wave_cuts.h"
#include "server/planner/wave_packing.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MemoryOptions StagedMemory(int64_t budget_bytes, uint32_t stages) {
  MemoryOptions options = BenchMemory(budget_bytes);
  v1::RunConfig run;
  run.set_dtype("fp32");
  run.set_head_chunk_tokens(512);
  *run.mutable_mesh() = MakeMesh({.pp = stages});
  options.shape = RankShape(BenchModel(), run);
  options.stages = StageShapes(BenchModel(), run);
  options.rounds_in_flight = stages;
  return options;
}

// Phase B of each stage again, from the choice's waves.
int64_t PhaseBPeak(const MemoryOptions& options, const ClusterShape& cluster, const MemoryChoice& choice) {
  int64_t peak = 0;
  for (size_t s = 0; s < options.stages.size(); ++s) {
    const ByteShape& stage = options.stages[s];
    size_t begin = 0;
    for (const uint32_t size : choice.wave_sizes) {
      const std::span<const MemberShape> members = std::span(cluster.members).subspan(begin, size);
      const WaveShape wave = server::WaveOf(members, options.layout, choice.way.suffix_policy);
      const int64_t others = std::max<int64_t>(choice.rounds_in_flight - static_cast<int64_t>(s), 1) - 1;
      const int64_t kept = choice.way.prefix.rows > 0 ? PrefixKeptBytes(stage, choice.way.prefix).peak() : 0;
      peak = std::max(peak, kept + WaveBytes(stage, wave).peak() + others * WaveKeptBytes(stage, wave));
      begin += size;
    }
  }
  return peak;
}

TEST(StageMemoryTest, AChoiceFitsOnEveryStageWithItsRoundsInFlight) {
  int fewer = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 3), seed % 4 != 0, random);
    const MemoryOptions options = StagedMemory(DrawSize(20, 600, random) * kMiB, 2 + seed % 4);
    const server::MemoryAnswer answer = server::ChooseMemory(options, cluster);
    if (!answer.choice) continue;
    const MemoryChoice& choice = *answer.choice;
    EXPECT_LE(choice.peak_bytes, options.budget_bytes);
    EXPECT_EQ(choice.suffix.peak(), PhaseBPeak(options, cluster, choice));
    for (const ByteShape& stage : options.stages) {
      if (choice.way.prefix.rows == 0) continue;
      EXPECT_LE(PrefixForwardBytes(stage, choice.way.prefix).peak(), choice.prefix_forward.peak());
      EXPECT_LE(PrefixBackwardBytes(stage, choice.way.prefix).peak(), choice.prefix_backward.peak());
    }
    EXPECT_EQ(choice.headroom_bytes, 0);
    fewer += choice.rounds_in_flight < options.rounds_in_flight ? 1 : 0;
    EXPECT_FALSE(choice.cheapest && choice.rounds_in_flight < options.rounds_in_flight);
    server::MemoryChooser chooser(options);
    const auto known = chooser.Choose(cluster);
    ASSERT_NE(known, nullptr);
    EXPECT_EQ(known->rounds_in_flight, choice.rounds_in_flight);
    EXPECT_EQ(known->wave_sizes, choice.wave_sizes);
  }
  EXPECT_GT(fewer, 5) << "some budgets must be tight";
}

TEST(StageMemoryTest, ALargerBudgetNeverHasFewerRoundsInFlight) {
  for (const ClusterShape& cluster : {OneGroup(1023, 256, 8), OneGroup(63, 512, 4), MixedCluster()}) {
    int64_t before = 0;
    for (int64_t budget = 4 * kMiB; budget < 2048 * kMiB; budget += budget / 16) {
      const server::MemoryAnswer answer = server::ChooseMemory(StagedMemory(budget, 4), cluster);
      const int64_t rounds = answer.choice ? answer.choice->rounds_in_flight : 0;
      EXPECT_GE(rounds, before) << budget;
      before = rounds;
    }
    EXPECT_EQ(before, 4);
  }
}

// Nothing fits below the fewest bytes, and one round at a time does at them.
TEST(StageMemoryTest, TheFewestBytesAreThoseOfOneRoundInFlight) {
  for (const ClusterShape& cluster : {OneGroup(1023, 256, 8), OneGroup(63, 512, 4), MixedCluster()}) {
    const int64_t fewest = server::FewestBytes(StagedMemory(0, 4), cluster);
    const server::MemoryAnswer fits = server::ChooseMemory(StagedMemory(fewest, 4), cluster);
    ASSERT_TRUE(fits.choice);
    EXPECT_EQ(fits.choice->rounds_in_flight, 1);
    const server::MemoryAnswer none = server::ChooseMemory(StagedMemory(fewest - 1, 4), cluster);
    EXPECT_FALSE(none.choice);
    EXPECT_EQ(none.bytes_needed, fewest);
  }
}

TEST(StageMemoryTest, TheReasonNamesTheRoundsInFlight) {
  const MemoryOptions options = StagedMemory(int64_t{1} << 40, 3);
  const server::MemoryAnswer answer = server::ChooseMemory(options, OneGroup(1023, 256, 8));
  ASSERT_TRUE(answer.choice);
  EXPECT_THAT(server::MemoryReason(options, *answer.choice), HasSubstr("suffixes S0 with 3 rounds in flight: needs "));
  const MemoryOptions one_stage = BenchMemory(int64_t{1} << 40);
  const server::MemoryAnswer alone = server::ChooseMemory(one_stage, OneGroup(1023, 256, 8));
  EXPECT_THAT(server::MemoryReason(one_stage, *alone.choice), Not(HasSubstr("in flight")));
}

// Alike are stages with as many layers and the same ends; the first and the last stage are like none between them.
TEST(StageMemoryTest, TheFirstOfStagesThatAreAlikeTellsForAll) {
  for (const uint32_t stages : {2U, 3U, 4U}) {
    const MemoryOptions options = StagedMemory(0, stages);
    std::vector<size_t> first_like;
    for (size_t s = 0; s < stages; ++s) {
      const size_t first = options.FirstLike(s);
      first_like.push_back(first);
      EXPECT_LE(first, s);
      EXPECT_EQ(options.stages[first].config.num_layers, options.stages[s].config.num_layers);
      EXPECT_EQ(options.stages[first].first_stage, options.stages[s].first_stage);
      EXPECT_EQ(options.stages[first].last_stage, options.stages[s].last_stage);
    }
    EXPECT_EQ(first_like.front(), 0U);
    EXPECT_EQ(first_like.back(), stages - 1) << "it alone has the head";
    const std::set<size_t> once(first_like.begin(), first_like.end());
    EXPECT_EQ(options.candidate_stages(), std::vector<size_t>(once.begin(), once.end()));
  }
  EXPECT_EQ(BenchMemory(0).candidate_stages(), std::vector<size_t>{0});
}

// Two groups together have fewer rounds in flight than each alone, where a budget is tight: then stages would wait.
TEST(StageMemoryTest, GroupsAreApartWhereTogetherTheyLeaveNoRoomForRounds) {
  std::vector<server::PackingGroup> groups(2);
  for (uint32_t g = 0; g < 2; ++g) {
    groups[g] = {.group = g, .uid = std::to_string(g), .prefix_rows = 900, .reuse = true, .members = {}};
    for (uint32_t i = 0; i < 8; ++i) groups[g].members.push_back({i, 300});
  }
  const server::ClusterShape alone = server::GroupShape(groups[0], true);
  server::ClusterShape both = alone;
  both.prefix_rows.push_back(900);
  for (MemberShape member : alone.members) {
    member.prefix = 1;
    both.members.push_back(member);
  }
  int decided = 0;
  for (int64_t budget = 16 * kMiB; budget < 512 * kMiB; budget += budget / 32) {
    const MemoryOptions options = StagedMemory(budget, 4);
    server::MemoryChooser chooser(options);
    const auto together = chooser.Choose(both), apart = chooser.Choose(alone);
    if (together == nullptr || apart == nullptr) continue;
    const auto clusters = server::PackClusters(chooser, groups);
    ASSERT_TRUE(clusters.ok()) << clusters.status();
    // Phase B takes S / r times as long where r rounds of S are in flight.
    const auto paced_s = [](const MemoryChoice& choice) {
      const double longer = 4.0 / static_cast<double>(choice.rounds_in_flight);
      return choice.seconds.prefix_forward + longer * choice.seconds.suffix + choice.seconds.prefix_backward;
    };
    const double together_s = paced_s(*together), apart_s = 2 * paced_s(*apart);
    if (std::abs(together_s - apart_s) < 1e-9 * apart_s) continue;
    EXPECT_EQ(clusters->size(), together->cheapest || together_s < apart_s ? 1U : 2U) << budget;
    decided += together_s > apart_s && together->seconds.total() <= 2 * apart->seconds.total() ? 1 : 0;
  }
  EXPECT_GT(decided, 0) << "some budget must be one where the rounds in flight decide";
}

// A pass without backward has no round in flight, and its head is on the last stage alone.
TEST(StageMemoryTest, AForwardOnlyPassNeedsWhatItsLargestStageDoes) {
  MemoryOptions options = StagedMemory(int64_t{1} << 40, 4);
  options.forward_only = true;
  options.rounds_in_flight = 1;
  const ClusterShape cluster = OneGroup(1023, 256, 3);
  const server::MemoryAnswer answer = server::ChooseMemory(options, cluster);
  ASSERT_TRUE(answer.choice);
  const WaveShape wave = server::WaveOf(cluster.members, options.layout, v1::S0);
  const PrefixShape prefix = {.rows = 1023, .lengths = {1023}};
  int64_t peak = 0;
  for (const ByteShape& stage : options.stages) {
    peak = std::max(peak, ForwardKeptBytes(stage, prefix) + ForwardWaveBytes(stage, wave));
  }
  EXPECT_EQ(answer.choice->suffix.peak(), peak);
}

}  // namespace
}  // namespace stemma::testing
