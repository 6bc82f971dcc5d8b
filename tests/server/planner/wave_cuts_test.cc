// Waves against a greedy loop that tries every member, over drawn clusters and budgets.
#include "server/planner/wave_cuts.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;
using testing::DrawCluster;

constexpr int64_t kWaveRows = 2048;

WaveShape WaveOf(const std::vector<MemberShape>& members, size_t begin, size_t end, v1::TapePolicy policy) {
  WaveShape wave = {.policy = policy};
  WaveRun run;
  for (size_t i = begin; i < end; ++i) {
    const MemberShape& m = members[i];
    const int64_t own = m.dense ? m.prefix_rows : 0, rows = own + m.rows;
    wave.rows += rows;
    wave.kv_only_rows += own;
    const bool behind_the_same = i > begin && !m.dense && members[i - 1].prefix == m.prefix && !members[i - 1].dense;
    if (!behind_the_same) run = {.ancestor_rows = m.dense ? 0 : m.prefix_rows, .kv_only_rows = own};
    run.rows += rows;
    run.longest_rows = std::max(run.longest_rows, rows);
    AddRun(run, wave);
  }
  return wave;
}

// Member by member.
std::vector<uint32_t> Greedy(const MemoryOptions& options, const ClusterShape& cluster, v1::TapePolicy policy,
                             int64_t bytes) {
  std::vector<uint32_t> sizes;
  size_t begin = 0;
  for (size_t end = 1; end <= cluster.members.size(); ++end) {
    if (end < cluster.members.size()) {
      const WaveShape joined = WaveOf(cluster.members, begin, end + 1, policy);
      if (joined.rows <= kWaveRows && WaveBytes(options.shape, joined).peak() <= bytes) continue;
    }
    sizes.push_back(static_cast<uint32_t>(end - begin));
    begin = end;
  }
  return sizes;
}

int64_t LargestWave(const MemoryOptions& options, const ClusterShape& cluster, v1::TapePolicy policy,
                    const std::vector<uint32_t>& sizes) {
  int64_t largest = 0;
  size_t begin = 0;
  for (const uint32_t size : sizes) {
    largest = std::max(largest, WaveBytes(options.shape, WaveOf(cluster.members, begin, begin + size, policy)).peak());
    begin += size;
  }
  return largest;
}

// One object is asked for budgets in a drawn order: what it remembers of one must not answer another.
TEST(WaveCutsTest, CutsAreThoseOfAGreedyLoopWhateverWasAskedBefore) {
  int several = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 4), seed % 3 != 0, random);
    const MemoryOptions options = BenchMemory(0);
    WaveCuts cuts(options, cluster);
    const std::vector<uint32_t> all = Greedy(options, cluster, v1::S1, kNoLimit);
    const int64_t most = LargestWave(options, cluster, v1::S1, all);
    EXPECT_EQ(cuts.fewest_waves(), static_cast<int64_t>(all.size()));
    for (int i = 0; i < 40; ++i) {
      const int64_t bytes = testing::DrawSize(most / 20, most + most / 10, random);
      const WaveCut& cut = cuts.Cut(v1::S1, bytes);
      EXPECT_EQ(cut.sizes, Greedy(options, cluster, v1::S1, bytes)) << bytes;
      EXPECT_EQ(cut.largest.peak(), LargestWave(options, cluster, v1::S1, cut.sizes)) << bytes;
      several += cut.waves() > cuts.fewest_waves() ? 1 : 0;
    }
  }
  EXPECT_GT(several, 500) << "budgets must shorten waves";
}

TEST(WaveCutsTest, AWaveFillsItsBytesExactly) {
  std::mt19937_64 random(5);
  const ClusterShape cluster = testing::OneGroup(300, 400, 4);
  const MemoryOptions options = BenchMemory(0);
  const int64_t whole = LargestWave(options, cluster, v1::S0, {4});
  WaveCuts cuts(options, cluster);
  EXPECT_EQ(cuts.Cut(v1::S0, whole - 1).waves(), 2);
  EXPECT_EQ(cuts.Cut(v1::S0, whole).waves(), 1);
  EXPECT_EQ(cuts.Cut(v1::S0, whole - 1).waves(), 2);
}

TEST(WaveCutsTest, TheLeastBytesAreThoseOfWavesOfOneMember) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 5), seed % 2 == 0, random);
    const MemoryOptions options = BenchMemory(0);
    WaveCuts cuts(options, cluster);
    for (const v1::TapePolicy policy : {v1::S0, v1::S4}) {
      const std::vector<uint32_t> ones(cluster.members.size(), 1);
      EXPECT_EQ(cuts.LeastBytes(policy), LargestWave(options, cluster, policy, ones));
    }
  }
}

TEST(WaveCutsTest, ForcedWavesAreCutWhateverTheyNeed) {
  MemoryOptions options = BenchMemory(0);
  options.wave_suffixes = 3;
  const ClusterShape cluster = testing::OneGroup(300, 400, 8);
  WaveCuts cuts(options, cluster);
  EXPECT_EQ(cuts.Cut(v1::S0, 1).sizes, (std::vector<uint32_t>{3, 3, 2}));
  EXPECT_EQ(cuts.LeastBytes(v1::S0), LargestWave(options, cluster, v1::S0, {3, 3, 2}));
}

}  // namespace
}  // namespace stemma::server
