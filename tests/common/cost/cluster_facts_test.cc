// What follows from a cluster of a plan, by hand.
#include "common/cost/cluster_facts.h"

#include <vector>

#include "gtest/gtest.h"

namespace stemma {
namespace {

using Waves = std::vector<std::vector<int>>;

v1::Cluster Prefixes(const std::vector<uint32_t>& groups) {
  v1::Cluster cluster;
  for (const uint32_t group : groups) cluster.add_prefix_groups(group);
  return cluster;
}

void AddWave(uint32_t cp_rank, bool cut_rows, v1::Cluster& cluster) {
  v1::Wave& wave = *cluster.add_waves();
  wave.set_cp_rank(cp_rank);
  wave.set_cut_rows(cut_rows);
}

TEST(ClusterFactsTest, OwnersAndHelpersAreSplitAndOnlyAHelperRunsNoPrefix) {
  const v1::Cluster whole = Prefixes({0});
  EXPECT_FALSE(IsSplit(whole));
  EXPECT_TRUE(RunsOwnPrefix(whole));
  v1::Cluster owners = whole, helpers = whole;
  owners.add_helper_ranks(1);
  EXPECT_TRUE(IsSplit(owners));
  EXPECT_TRUE(RunsOwnPrefix(owners));
  helpers.set_owner_rank(0);  // rank 0 is a rank, too
  EXPECT_TRUE(IsSplit(helpers));
  EXPECT_FALSE(RunsOwnPrefix(helpers));
  EXPECT_FALSE(RunsOwnPrefix(Prefixes({}))) << "a dense cluster has no prefix";
}

TEST(ClusterFactsTest, BlocksAreThoseOfThePackedRowsThatRunHere) {
  const std::vector<int64_t> prefix_rows = {5, 100, 3};
  v1::Cluster cluster = Prefixes({0, 2});
  EXPECT_EQ(NumPrefixBlocks(cluster, prefix_rows), 1) << "all at once";
  cluster.set_prefix_block_rows(8);
  EXPECT_EQ(NumPrefixBlocks(cluster, prefix_rows), 1) << "5 + 3 rows";
  cluster.set_prefix_block_rows(7);
  EXPECT_EQ(NumPrefixBlocks(cluster, prefix_rows), 2);
  cluster.set_prefix_block_rows(1);
  EXPECT_EQ(NumPrefixBlocks(cluster, prefix_rows), 8);
  cluster.add_prefix_groups(3);
  EXPECT_EQ(NumPrefixBlocks(cluster, prefix_rows), 8) << "the request has no such group";
  cluster.set_owner_rank(1);
  EXPECT_EQ(NumPrefixBlocks(cluster, prefix_rows), 0) << "the owner runs them";
  EXPECT_EQ(NumPrefixBlocks(Prefixes({}), prefix_rows), 0);
}

TEST(ClusterFactsTest, WavesAreTheirRanksAndThoseThatAreCutEverybodys) {
  v1::Cluster cluster;
  AddWave(0, /*cut_rows=*/true, cluster);
  AddWave(1, /*cut_rows=*/false, cluster);
  AddWave(1, /*cut_rows=*/false, cluster);
  AddWave(0, /*cut_rows=*/false, cluster);
  AddWave(2, /*cut_rows=*/false, cluster);
  EXPECT_EQ(WavesByRank(cluster, 3), (Waves{{0, 3}, {0, 1, 2}, {0, 4}}));
  EXPECT_EQ(RoundsOfWaves(cluster, 3), 3);
  EXPECT_EQ(WavesByRank(cluster, 1), (Waves{{0, 3}})) << "ranks 1 and 2 are not there";
  EXPECT_EQ(RoundsOfWaves(cluster, 1), 2);
  EXPECT_EQ(RoundsOfWaves({}, 3), 0);
}

}  // namespace
}  // namespace stemma
