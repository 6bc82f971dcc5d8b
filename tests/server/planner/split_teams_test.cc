// Teams of ranks for groups that are split: where there are more ranks than groups, nobody waits for two owners, and a
// step ends no later on more ranks.
#include "server/planner/split_teams.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/planner/split_batches.h"

namespace stemma::server {
namespace {

using testing::Batch;
using testing::CheckAlways;
using testing::CostsOf;
using testing::DrawBatch;
using testing::DrawLognormal;
using testing::DrawSize;
using testing::kRounding;

Batch EqualGroups(int64_t groups, double prefix_rows, double suffix_rows) {
  Batch batch;
  for (; groups > 0; --groups) batch.Add(CostsOf(prefix_rows, std::vector<double>(16, suffix_rows)), true);
  return batch;
}

TEST(SplitTeamsTest, MoreRanksThanGroupsAreTeamsThatWaitForNoOther) {
  const Batch batch = EqualGroups(8, 500, 2000);
  const double whole_s = batch.groups[0].total_s();
  for (const int32_t of_each : {2, 3, 4, 8}) {
    const SplitRequest request = batch.Request(8 * of_each, v1::SPLIT_AUTO);
    const SplitPlacement p = PlaceAndSplit(request);
    CheckAlways(batch, request, p);
    ASSERT_EQ(p.splits.size(), 8U);
    std::set<int32_t> ranks;
    for (const GroupSplit& split : p.splits) {
      EXPECT_EQ(split.ranks.size(), static_cast<size_t>(of_each));
      ranks.insert(split.ranks.begin(), split.ranks.end());
    }
    EXPECT_EQ(ranks.size(), static_cast<size_t>(8 * of_each)) << "no rank has two parts";
    const double largest_part_s = std::ceil(16.0 / of_each) * batch.costs[0].rollouts_s[0];
    EXPECT_LT(p.max_s(), 1.03 * (batch.groups[0].prefix_s + largest_part_s)) << of_each << ": sending is little here";
  }
  EXPECT_EQ(PlaceAndSplit(batch.Request(8, v1::SPLIT_AUTO)).max_s(), whole_s);
}

// 24 groups on 16 ranks: whole, half of the ranks have two and the others one.
TEST(SplitTeamsTest, GroupsThatAreLeftOverAreSharedByAll) {
  const Batch batch = EqualGroups(24, 500, 2000);
  const SplitRequest request = batch.Request(16, v1::SPLIT_AUTO);
  const SplitPlacement p = PlaceAndSplit(request);
  CheckAlways(batch, request, p);
  EXPECT_NEAR(p.imbalance_whole(), 2 / 1.5, kRounding);
  EXPECT_LT(p.imbalance(), 1.1);
}

TEST(SplitTeamsTest, MoreRanksNeverEndLater) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Batch batch = seed % 2 == 0 ? DrawBatch(random)
                                      : EqualGroups(DrawSize(1, 12, random), DrawLognormal(700, 1, random),
                                                    DrawLognormal(500, 1, random));
    double best_s = std::numeric_limits<double>::infinity();
    for (int32_t ranks = 1; ranks <= 40; ++ranks) {
      const SplitRequest request = batch.Request(ranks, v1::SPLIT_AUTO);
      const SplitPlacement p = PlaceAndSplit(request);
      CheckAlways(batch, request, p);
      // Neither search takes what wins less than kWorthSplitting.
      EXPECT_LE(p.max_s(), (1 + 2 * kWorthSplitting) * best_s) << ranks << " ranks";
      best_s = std::min(best_s, p.max_s());
    }
  }
}

TEST(SplitTeamsTest, TheSlowestTeamGetsTheRanks) {
  const GroupToSplit small(CostsOf(100, std::vector<double>(8, 500))),
      large(CostsOf(100, std::vector<double>(32, 500)));
  const std::vector<const GroupToSplit*> groups = {&small, &large};
  const auto sizes = [&](size_t ranks, double others_s) {
    std::vector<size_t> ranks_of_teams;
    for (const auto& split : CutForTeams(groups, ranks, others_s))
      ranks_of_teams.push_back(split ? split->ranks.size() : 1);
    return ranks_of_teams;
  };
  EXPECT_EQ(sizes(1, 0), (std::vector<size_t>{1, 1})) << "more groups than ranks have no teams";
  EXPECT_EQ(sizes(2, 0), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(sizes(5, 0), (std::vector<size_t>{1, 4}));
  EXPECT_EQ(sizes(10, 0), (std::vector<size_t>{2, 8}));
  const double work_s = small.costs().rollouts_s[0] * 40;
  EXPECT_EQ(sizes(10, 100 * work_s), (std::vector<size_t>{1, 1})) << "the others take longer anyhow";
  EXPECT_TRUE(CutForTeams({}, 4, 0).empty());
}

}  // namespace
}  // namespace stemma::server
