// Clusters of several groups: never over the budget, never slower with a larger one, never worse than one cluster each.
#include "server/planner/wave_packing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/cost/wave_bytes.h"
#include "gtest/gtest.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/testing/counted_allocations.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;

std::vector<PackingGroup> RandomGroups(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<PackingGroup> groups;
  for (uint32_t g = 0; g < 9; ++g) {
    PackingGroup& group = groups.emplace_back();
    group.group = g;
    group.uid = absl::StrCat("g", g);
    group.prefix_rows = static_cast<int64_t>(random() % 900);
    group.reuse = group.prefix_rows > 0 && random() % 3 != 0;
    const uint32_t count = 1 + random() % 5;
    for (uint32_t i = 0; i < count; ++i) group.members.push_back({i, 1 + static_cast<int64_t>(random() % 500)});
  }
  return groups;
}

absl::StatusOr<std::vector<PackedCluster>> Pack(const MemoryOptions& options, const std::vector<PackingGroup>& groups) {
  MemoryChooser chooser(options);
  return PackClusters(chooser, groups);
}

double SecondsOf(const std::vector<PackedCluster>& clusters) {
  double seconds = 0;
  for (const PackedCluster& packed : clusters) seconds += packed.memory.seconds.total();
  return seconds;
}

TEST(WavePackingTest, EveryRolloutIsInOneWaveAndInOrder) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    const std::vector<PackingGroup> groups = RandomGroups(seed);
    const auto clusters = Pack(BenchMemory(int64_t{200} << 20), groups);
    ASSERT_TRUE(clusters.ok()) << clusters.status();
    std::vector<std::pair<uint32_t, uint32_t>> expected, seen;
    for (const PackingGroup& group : groups) {
      for (const PackingMember& member : group.members) expected.emplace_back(group.group, member.rollout);
    }
    for (const PackedCluster& packed : *clusters) {
      for (const v1::Wave& wave : packed.cluster.waves()) {
        for (const v1::WaveMember& m : wave.members()) seen.emplace_back(m.group(), m.rollout());
      }
    }
    EXPECT_EQ(seen, expected);
  }
}

TEST(WavePackingTest, NeverOverTheBudgetAndNeverSlowerWithALargerOne) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
    const std::vector<PackingGroup> groups = RandomGroups(seed);
    double before = std::numeric_limits<double>::infinity();
    for (double budget = 24.0 * (1 << 20); budget < 3e9; budget *= 1.25) {
      const MemoryOptions options = BenchMemory(static_cast<int64_t>(budget));
      const auto clusters = Pack(options, groups);
      if (!clusters.ok()) {
        EXPECT_EQ(before, std::numeric_limits<double>::infinity()) << "what fitted fits a larger budget";
        continue;
      }
      for (const PackedCluster& packed : *clusters) EXPECT_LE(packed.memory.peak_bytes, options.budget_bytes);
      EXPECT_LE(SecondsOf(*clusters), before) << "seed " << seed << " budget " << options.budget_bytes;
      before = SecondsOf(*clusters);
    }
    EXPECT_LT(before, std::numeric_limits<double>::infinity());
  }
}

TEST(WavePackingTest, JoiningGroupsIsNeverSlowerThanOneClusterEach) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    const std::vector<PackingGroup> groups = RandomGroups(seed);
    for (const int64_t budget_mib : {80, 150, 400, 2000}) {
      const MemoryOptions options = BenchMemory(budget_mib << 20);
      const auto together = Pack(options, groups);
      double apart = 0;
      for (const PackingGroup& group : groups) {
        const auto alone = Pack(options, {group});
        apart += alone.ok() ? SecondsOf(*alone) : std::numeric_limits<double>::infinity();
      }
      if (!together.ok()) continue;
      EXPECT_LE(SecondsOf(*together), apart * (1 + 1e-12));
    }
  }
}

// A cluster whose tape is recomputed may still be faster than two that pass over the weights twice.
TEST(WavePackingTest, CuttingIsNeverSlowerThanOneClusterThatFits) {
  int joined = 0, cut = 0;
  for (const int64_t rows : {60, 120, 250, 500}) {
    std::vector<PackingGroup> groups;
    for (uint32_t g = 0; g < 2; ++g) {
      const int64_t prefix = (g + 1) * rows;
      groups.push_back({.group = g, .uid = "g", .prefix_rows = prefix, .reuse = true, .members = {{0, rows}, {1, 30}}});
    }
    ClusterShape both = GroupShape(groups[0], true);
    const ClusterShape second = GroupShape(groups[1], true);
    both.prefix_rows.insert(both.prefix_rows.end(), second.prefix_rows.begin(), second.prefix_rows.end());
    both.members.insert(both.members.end(), second.members.begin(), second.members.end());
    for (double budget = 8.0 * (1 << 20); budget < 4e8; budget *= 1.03) {
      const MemoryOptions options = BenchMemory(static_cast<int64_t>(budget));
      const MemoryAnswer together = ChooseMemory(options, both);
      const auto packed = Pack(options, groups);
      if (!packed.ok() || !together.choice || together.choice->cheapest) continue;
      EXPECT_LE(SecondsOf(*packed), together.choice->seconds.total() * (1 + 1e-12)) << rows << ", " << budget;
      (packed->size() == 1 ? joined : cut) += 1;
    }
  }
  EXPECT_GT(joined, 0);
  EXPECT_GT(cut, 0);
}

TEST(WavePackingTest, WavesHaveTheSizesThatWerePriced) {
  int uneven = 0;
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    for (const int64_t budget_mib : {80, 150, 400}) {
      const auto clusters = Pack(BenchMemory(budget_mib << 20), RandomGroups(seed));
      if (!clusters.ok()) continue;
      for (const PackedCluster& packed : *clusters) {
        std::vector<uint32_t> sizes;
        for (const v1::Wave& wave : packed.cluster.waves()) sizes.push_back(static_cast<uint32_t>(wave.members_size()));
        EXPECT_EQ(sizes, packed.memory.wave_sizes) << "seed " << seed;
        uneven += std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) != sizes.end() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(uneven, 0) << "some clusters must hold waves of unequal sizes";
}

TEST(WavePackingTest, PrefixesShareAClusterUpToExactlyTheRowsWorthPacking) {
  for (const auto& [rows, clusters] : {std::pair<int64_t, size_t>{1024, 1}, {1025, 2}}) {
    std::vector<PackingGroup> groups(2);
    for (uint32_t g = 0; g < 2; ++g) {
      groups[g] = {
          .group = g, .uid = absl::StrCat("g", g), .prefix_rows = rows, .reuse = true, .members = {{0, 8}, {1, 8}}};
    }
    const auto packed = Pack(BenchMemory(int64_t{1} << 40), groups);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->size(), clusters) << rows;
  }
}

// Tape that the headroom keeps on the device counts beside everything else that a phase holds.
TEST(WavePackingTest, AnOffloadedTapeKeepsNoMoreThanTheBudgetLeavesBesideEachPhase) {
  PackingGroup group = {.group = 0, .uid = "g", .prefix_rows = 1023, .reuse = true, .members = {}};
  for (uint32_t i = 0; i < 8; ++i) group.members.push_back({i, 256});
  int in_between = 0;
  for (const int64_t budget_mib : {110, 130, 160, 210, 300}) {
    MemoryOptions options = BenchMemory(budget_mib << 20);
    options.offload = v1::OFFLOAD_ON;
    options.prefix_policy = v1::S0;
    const auto clusters = Pack(options, {group});
    ASSERT_TRUE(clusters.ok()) << clusters.status();
    const v1::Cluster& cluster = clusters->front().cluster;
    ASSERT_TRUE(cluster.offload_prefix());
    PrefixShape prefix = clusters->front().memory.way.prefix;
    prefix.headroom_bytes = static_cast<int64_t>(cluster.offload_headroom_bytes());
    int64_t peak =
        std::max(PrefixForwardBytes(options.shape, prefix).peak(), PrefixBackwardBytes(options.shape, prefix).peak());
    for (const v1::Wave& wave : cluster.waves()) {
      const int64_t rows = int64_t{256} * wave.members_size();
      const WaveShape shape = {.rows = rows, .runs = {{rows, 256, 1023, 0}}, .policy = cluster.suffix_policy()};
      peak = std::max(peak, SuffixBytes(options.shape, prefix, shape).peak());
    }
    EXPECT_LE(peak, options.budget_bytes) << budget_mib;
    in_between += prefix.headroom_bytes > 0 && prefix.headroom_bytes < HostTapeBytes(options.shape, prefix) ? 1 : 0;
  }
  EXPECT_GE(in_between, 2) << "some budgets must hold a part of the tape";
}

TEST(WavePackingTest, AForwardOnlyPassIsSentTheBlocksThatItIsPlannedIn) {
  const PackingGroup group = {
      .group = 0, .uid = "g", .prefix_rows = 4000, .reuse = true, .members = {{0, 16}, {1, 16}}};
  MemoryOptions options = BenchMemory(int64_t{1} << 40);
  options.forward_only = true;
  const auto ample = Pack(options, {group});
  ASSERT_TRUE(ample.ok()) << ample.status();
  EXPECT_EQ(ample->front().cluster.prefix_block_rows(), 0u);
  options.budget_bytes = ample->front().memory.peak_bytes - 1;
  const auto tight = Pack(options, {group});
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_GT(tight->front().cluster.prefix_block_rows(), 0u);
  EXPECT_EQ(tight->front().cluster.prefix_policy(), v1::TAPE_POLICY_UNSPECIFIED);
}

std::vector<PackingGroup> DenseGroups(uint32_t count) {
  std::vector<PackingGroup> groups(count);
  for (uint32_t g = 0; g < count; ++g) {
    groups[g].group = g;
    groups[g].members = {{.rollout = 0, .rows = 100}};
  }
  return groups;
}

// Dense groups share no prefixes, so all of a step are one cluster.
TEST(WavePackingTest, TwiceTheGroupsAllocateAboutTwiceTheBytes) {
  int64_t bytes[2];
  for (const int i : {0, 1}) {
    const std::vector<PackingGroup> groups = DenseGroups(2000u << i);
    const auto pack = [&] { EXPECT_EQ(Pack(BenchMemory(int64_t{1} << 50), groups)->size(), 1u); };
    bytes[i] = testing::AllocationsOf(pack).bytes;
  }
  EXPECT_LT(bytes[1], 3 * bytes[0]);
}

// One group, of which many ways are looked at where its fastest does not fit; an answer given too early would be that
// none does.
TEST(WavePackingTest, APlanThatNobodyWaitsForEndsWithinOneWayOfACluster) {
  PackingGroup group = {.group = 0, .uid = "g", .prefix_rows = 1023, .reuse = true, .members = {}};
  for (uint32_t i = 0; i < 8; ++i) group.members.push_back({.rollout = i, .rows = 256});
  int asked_at_most = 0;
  for (const int64_t budget_mib : {60, 80, 100, 120, 150}) {
    MemoryOptions options = BenchMemory(budget_mib << 20);
    int asked = 0, stop_at = -1;
    options.stop = [&] { return ++asked >= stop_at && stop_at > 0; };
    static_cast<void>(Pack(options, {group}));
    const int asked_of_all = asked;
    asked_at_most = std::max(asked_at_most, asked_of_all);
    for (stop_at = 1; stop_at <= asked_of_all; ++stop_at) {
      asked = 0;
      EXPECT_EQ(Pack(options, {group}).status().code(), absl::StatusCode::kCancelled) << stop_at;
      EXPECT_LE(asked, stop_at + 5);
    }
  }
  EXPECT_GT(asked_at_most, 8) << "no budget is tight";
}

}  // namespace
}  // namespace stemma::server
