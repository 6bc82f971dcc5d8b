// How members are dealt to context-parallel ranks, over drawn clusters; and the waves that each rank's are cut into.
#include "server/planner/member_dealing.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "server/planner/rank_cuts.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;
using testing::BenchModel;
using testing::DrawCluster;

ClusterShape Drawn(uint64_t seed, std::mt19937_64& random) {
  ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 4), seed % 3 != 0, random);
  if (seed % 5 == 0) cluster.members.push_back({.rows = 900, .prefix_rows = 700, .dense = true});
  return cluster;
}

TEST(MemberDealingTest, NoRankHasMoreThanTheMeanAndTheMostExpensiveMember) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = Drawn(seed, random);
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 6);
    const std::vector<uint32_t> dealt = DealMembers(BenchModel(), cluster.members, ranks);
    ASSERT_EQ(dealt.size(), cluster.members.size());
    std::vector<double> loads(static_cast<size_t>(ranks));
    double largest = 0;
    for (size_t i = 0; i < dealt.size(); ++i) {
      ASSERT_LT(dealt[i], ranks);
      const MemberShape& member = cluster.members[i];
      // Another formula: rows of the whole trajectory where it is dense, behind its prefix else.
      const double flops = member.dense ? DenseFlops(BenchModel(), member.prefix_rows, member.rows).total() / 3
                                        : SuffixFlops(BenchModel(), member.prefix_rows, member.rows).total() / 3;
      EXPECT_NEAR(MemberFlops(BenchModel(), member), flops, 1e-9 * flops);
      loads[dealt[i]] += flops;
      largest = std::max(largest, flops);
    }
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(ranks);
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()), (mean + largest) * (1 + 1e-12));
    EXPECT_EQ(DealMembers(BenchModel(), cluster.members, ranks), dealt) << "the same again";
  }
}

TEST(MemberDealingTest, EquallyExpensiveMembersGoRoundInTheirOrder) {
  const ClusterShape cluster = testing::OneGroup(300, 100, 7);
  EXPECT_EQ(DealMembers(BenchModel(), cluster.members, 3), (std::vector<uint32_t>{0, 1, 2, 0, 1, 2, 0}));
}

TEST(MemberDealingTest, TheLongestIsDealtFirst) {
  ClusterShape cluster = testing::OneGroup(300, 100, 4);
  cluster.members[3].rows = 310;
  EXPECT_EQ(DealMembers(BenchModel(), cluster.members, 2), (std::vector<uint32_t>{1, 1, 1, 0}));
}

// A dense trajectory computes its prefix too.
TEST(MemberDealingTest, ADenseMemberCostsItsPrefix) {
  const std::vector<MemberShape> members = {{.rows = 100, .prefix_rows = 10, .dense = true},
                                            {.rows = 50, .prefix_rows = 900, .dense = true},
                                            {.rows = 90, .prefix_rows = 10, .dense = true}};
  EXPECT_EQ(DealMembers(BenchModel(), members, 2), (std::vector<uint32_t>{1, 0, 1}));
}

ClusterShape MembersOfRank(const ClusterShape& cluster, const std::vector<uint32_t>& dealt, size_t rank) {
  ClusterShape own;
  for (size_t i = 0; i < dealt.size(); ++i) {
    if (dealt[i] == rank) own.members.push_back(cluster.members[i]);
  }
  return own;
}

// The cuts of each rank are those of its members alone.
TEST(RankCutsTest, WavesDoNotCrossRanksAndFitTheirBytes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = Drawn(seed, random);
    MemoryOptions options = BenchMemory(0);
    options.shape.cp = 2 + static_cast<int64_t>(random() % 3);
    const std::vector<uint32_t> dealt = DealMembers(options.shape.config, cluster.members, options.shape.cp);
    RankCuts cuts(options, cluster, dealt);
    constexpr int64_t kMuch = int64_t{1} << 30;  // so that layers, and not the head, decide
    const BesideLayer layer = {
        .forward = kMuch, .backward = 3 * kMuch, .forward_last = kMuch, .backward_last = 3 * kMuch};
    server::BesideWave beside;
    beside.stages.push_back({.layer = layer, .kept = {}});
    const std::vector<uint32_t> order = cuts.MemberOrder();
    ASSERT_EQ(order.size(), cluster.members.size());
    EXPECT_GT(cuts.LeastBytes(v1::S0, beside), cuts.LeastBytes(v1::S0, {}));
    for (const double more : {1.0, 1.3, 2.0}) {
      const auto bytes = static_cast<int64_t>(more * static_cast<double>(cuts.LeastBytes(v1::S0, beside)));
      const RankCut cut = cuts.Cut(v1::S0, bytes, beside);
      EXPECT_LE(cut.largest().peak(), bytes);
      size_t next = 0;
      int64_t largest = 0;
      for (size_t rank = 0; rank < cut.of_ranks.size(); ++rank) {
        const ClusterShape own = MembersOfRank(cluster, dealt, rank);
        WaveCuts alone(options, own, beside);
        EXPECT_EQ(cut.of_ranks[rank]->sizes, alone.Cut(v1::S0, bytes).sizes);
        largest = std::max(largest, alone.Cut(v1::S0, bytes).largest.peak());
        size_t members = 0;
        for (const uint32_t size : cut.of_ranks[rank]->sizes) members += size;
        EXPECT_EQ(members, own.members.size());
        for (size_t i = 0; i < members; ++i, ++next) {
          EXPECT_EQ(dealt[order[next]], rank);
          if (i > 0) {
            EXPECT_LT(order[next - 1], order[next]) << "in their order";
          }
        }
      }
      EXPECT_EQ(cut.largest().peak(), largest);
      int64_t rounds = 0;
      for (const WaveCut* of_rank : cut.of_ranks) rounds = std::max(rounds, of_rank->waves());
      EXPECT_EQ(Rounds(cut.waves()), rounds);
    }
  }
}

// What any rank's members need at least, whichever way sizes of waves are chosen.
TEST(RankCutsTest, TheLeastBytesAreThoseOfTheRankThatNeedsMost) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = Drawn(seed, random);
    MemoryOptions options = BenchMemory(0);
    options.shape.cp = 2 + static_cast<int64_t>(random() % 3);
    options.wave_suffixes = seed % 3 == 0 ? 2 : 0;
    const std::vector<uint32_t> dealt = DealMembers(options.shape.config, cluster.members, options.shape.cp);
    RankCuts cuts(options, cluster, dealt);
    for (const v1::TapePolicy policy : {v1::S0, v1::S2}) {
      int64_t most = 0;
      for (uint32_t rank = 0; rank < options.shape.cp; ++rank) {
        const ClusterShape own = MembersOfRank(cluster, dealt, rank);
        most = std::max(most, WaveCuts(options, own).LeastBytes(policy));
      }
      EXPECT_EQ(cuts.LeastBytes(policy, {}), most);
    }
  }
}

}  // namespace
}  // namespace stemma::server
