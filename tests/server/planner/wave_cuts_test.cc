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

// The first of the largest.
PhaseBytes LargestWave(const MemoryOptions& options, const ClusterShape& cluster, v1::TapePolicy policy,
                       const std::vector<uint32_t>& sizes) {
  PhaseBytes largest;
  size_t begin = 0;
  for (const uint32_t size : sizes) {
    const PhaseBytes wave = WaveBytes(options.shape, WaveOf(cluster.members, begin, begin + size, policy));
    if (wave.peak() > largest.peak()) largest = wave;
    begin += size;
  }
  return largest;
}

// Groups of drawn kinds next to each other.
ClusterShape DrawMixedCluster(uint64_t seed, std::mt19937_64& random) {
  ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 4), seed % 3 != 0, random);
  if (seed % 5 != 0) return cluster;
  for (const MemberShape& member : DrawCluster(2, /*reuse=*/false, random).members) cluster.members.push_back(member);
  std::rotate(cluster.members.begin(),
              cluster.members.begin() + static_cast<int64_t>(random() % cluster.members.size()), cluster.members.end());
  return cluster;
}

// One object is asked for budgets in a drawn order: what it remembers of one must not answer another.
TEST(WaveCutsTest, CutsAreThoseOfAGreedyLoopWhateverWasAskedBefore) {
  int several = 0, none = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawMixedCluster(seed, random);
    MemoryOptions options = BenchMemory(0);
    if (seed % 2 != 0) options.shape.threads = 256;  // attention's scratch is then what a wave needs most
    const std::vector<uint32_t> ones(cluster.members.size(), 1);
    const PhaseBytes alone = LargestWave(options, cluster, v1::S1, ones);
    WaveCuts cuts(options, cluster);
    const std::vector<uint32_t> all = Greedy(options, cluster, v1::S1, kNoLimit);
    const int64_t most = LargestWave(options, cluster, v1::S1, all).peak();
    EXPECT_EQ(cuts.fewest().waves, static_cast<int64_t>(all.size()));
    for (int i = 0; i < 40; ++i) {
      const int64_t bytes = testing::DrawSize(alone.peak() * 9 / 10, most + most / 10, random);
      const WaveCut& cut = cuts.Cut(v1::S1, bytes);
      const bool fits = alone.peak() <= bytes;
      none += fits ? 0 : 1;
      EXPECT_EQ(cut.sizes, fits ? Greedy(options, cluster, v1::S1, bytes) : std::vector<uint32_t>()) << bytes;
      const PhaseBytes largest = fits ? LargestWave(options, cluster, v1::S1, cut.sizes) : alone;
      EXPECT_EQ(cut.largest.wave_tape, largest.wave_tape) << bytes;
      EXPECT_EQ(cut.largest.working_set, largest.working_set) << bytes;
      several += cut.waves() > cuts.fewest().waves ? 1 : 0;
    }
  }
  EXPECT_GT(several, 500) << "budgets must shorten waves";
  EXPECT_GT(none, 100) << "and be too small for a member";
}

TEST(WaveCutsTest, AWaveFillsItsBytesExactly) {
  std::mt19937_64 random(5);
  const ClusterShape cluster = testing::OneGroup(300, 400, 4);
  const MemoryOptions options = BenchMemory(0);
  const int64_t whole = LargestWave(options, cluster, v1::S0, {4}).peak();
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
      EXPECT_EQ(cuts.LeastBytes(policy), LargestWave(options, cluster, policy, ones).peak());
    }
  }
}

// A wave that another one covers decides nothing.
TEST(WaveCutsTest, AlikeWavesArePricedOnce) {
  const MemoryOptions options = BenchMemory(0);
  ClusterShape cluster = testing::OneGroup(300, 400, 40);
  for (size_t i = 5; i < cluster.members.size(); i += 3) cluster.members[i].rows = 390;  // in later waves
  WaveCuts cuts(options, cluster);
  EXPECT_EQ(cuts.Cut(v1::S0, kNoLimit).waves(), 8);
  EXPECT_EQ(cuts.waves_priced(), 1);
}

// The first wave passes the bytes, so its longest member is asked for, who passes them, too.
TEST(WaveCutsTest, ACutThatCannotFitIsNotMade) {
  const MemoryOptions options = BenchMemory(0);
  const ClusterShape cluster = testing::OneGroup(300, 400, 40);
  WaveCuts cuts(options, cluster);
  EXPECT_EQ(cuts.Cut(v1::S0, 1).waves(), 0);
  EXPECT_EQ(cuts.Cut(v1::S0, 2).waves(), 0);
  EXPECT_EQ(cuts.waves_priced(), 2);
}

TEST(WaveCutsTest, ForcedWavesAreCutWhateverTheyNeed) {
  MemoryOptions options = BenchMemory(0);
  options.wave_suffixes = 3;
  const ClusterShape cluster = testing::OneGroup(300, 400, 8);
  WaveCuts cuts(options, cluster);
  EXPECT_EQ(cuts.Cut(v1::S0, 1).sizes, (std::vector<uint32_t>{3, 3, 2}));
  EXPECT_EQ(cuts.LeastBytes(v1::S0), LargestWave(options, cluster, v1::S0, {3, 3, 2}).peak());
}

}  // namespace
}  // namespace stemma::server
