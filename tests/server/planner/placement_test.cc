// Placement of drawn groups: every group on one rank, loads that add up, close to the lower bound, and near the best
// placement that trying all of them finds.
#include "server/planner/placement.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/planner/drawn_clusters.h"

namespace stemma::server {
namespace {

using testing::DrawLognormal;
using testing::DrawSize;

constexpr double kRounding = 1e-12;  // sums of a few thousand doubles in two orders
constexpr double kBar = 1e-3;        // over the lower bound

// Costs as rows and causal pairs make them, in seconds of no machine.
std::vector<PlacementGroup> DrawGroups(int64_t count, std::mt19937_64& random) {
  const auto seconds = [](double ancestors, double rows) { return 1e-6 * rows * (1 + (ancestors + rows / 2) / 4096); };
  std::vector<PlacementGroup> groups;
  for (int64_t g = 0; g < count; ++g) {
    const double prefix = DrawLognormal(700, 1, random);
    PlacementGroup& group = groups.emplace_back();
    group.prefix_s = seconds(0, prefix);
    for (int i = 0; i < 16; ++i) group.suffixes_s += seconds(prefix, DrawLognormal(500, 1, random));
  }
  return groups;
}

std::vector<PlacementGroup> Costing(const std::vector<double>& costs) {
  std::vector<PlacementGroup> groups;
  for (const double cost : costs) groups.push_back({.prefix_s = cost / 4, .suffixes_s = cost - cost / 4});
  return groups;
}

double Sum(const std::vector<PlacementGroup>& groups) {
  double sum = 0;
  for (const PlacementGroup& group : groups) sum += group.prefix_s + group.suffixes_s;
  return sum;
}

double Bound(const std::vector<PlacementGroup>& groups, int32_t ranks) {
  std::vector<double> pinned(static_cast<size_t>(ranks));
  double bound = Sum(groups) / ranks;
  for (const PlacementGroup& group : groups) {
    const double cost = group.prefix_s + group.suffixes_s;
    bound = std::max(bound, cost);
    if (group.pinned_rank != kNotPinned) pinned[static_cast<size_t>(group.pinned_rank)] += cost;
  }
  return std::max(bound, *std::max_element(pinned.begin(), pinned.end()));
}

// What a placement would report if its groups were on these ranks.
Placement Reported(const std::vector<PlacementGroup>& groups, const std::vector<int32_t>& on, int32_t ranks) {
  Placement placement = {.ranks = on, .loads_s = std::vector<double>(static_cast<size_t>(ranks))};
  for (size_t g = 0; g < groups.size(); ++g) {
    placement.loads_s[static_cast<size_t>(on[g])] += groups[g].prefix_s + groups[g].suffixes_s;
  }
  placement.bound_s = Bound(groups, ranks);
  return placement;
}

// Places them and checks what always holds.
Placement Place(const std::vector<PlacementGroup>& groups, int32_t ranks) {
  Placement placement = PlaceGroups(groups, ranks);
  EXPECT_EQ(placement.ranks.size(), groups.size());
  EXPECT_EQ(placement.loads_s.size(), static_cast<size_t>(ranks));
  for (size_t g = 0; g < groups.size(); ++g) {
    const int32_t rank = placement.ranks[g];
    EXPECT_TRUE(rank >= 0 && rank < ranks) << "group " << g << " is on rank " << rank << " of " << ranks;
    if (groups[g].pinned_rank != kNotPinned) {
      EXPECT_EQ(rank, groups[g].pinned_rank) << "group " << g;
    }
  }
  if (::testing::Test::HasFailure()) return placement;
  const Placement reported = Reported(groups, placement.ranks, ranks);
  for (size_t rank = 0; rank < reported.loads_s.size(); ++rank) {
    EXPECT_NEAR(placement.loads_s[rank], reported.loads_s[rank], kRounding * Sum(groups)) << "rank " << rank;
  }
  EXPECT_NEAR(placement.bound_s, reported.bound_s, kRounding * Sum(groups));
  EXPECT_GE(placement.max_s(), placement.bound_s * (1 - kRounding));
  return placement;
}

// The least that the fullest rank can have, by trying every placement that may be better than the best so far.
double BestOfAll(const std::vector<PlacementGroup>& groups, std::vector<double>& loads, size_t next, double best) {
  if (next == groups.size()) return std::min(best, *std::max_element(loads.begin(), loads.end()));
  const PlacementGroup& group = groups[next];
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    if (group.pinned_rank != kNotPinned && static_cast<size_t>(group.pinned_rank) != rank) continue;
    const double before = loads[rank];
    loads[rank] += group.prefix_s + group.suffixes_s;
    if (loads[rank] < best) best = BestOfAll(groups, loads, next + 1, best);
    loads[rank] = before;
  }
  return best;
}

double BestOfAll(const std::vector<PlacementGroup>& groups, int32_t ranks) {
  std::vector<double> loads(static_cast<size_t>(ranks));
  return BestOfAll(groups, loads, 0, std::numeric_limits<double>::infinity());
}

// What the fullest rank has by largest first, without exchanges.
double LargestFirst(std::vector<PlacementGroup> groups, int32_t ranks) {
  std::vector<double> loads(static_cast<size_t>(ranks));
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.prefix_s + a.suffixes_s > b.prefix_s + b.suffixes_s; });
  for (const bool pinned : {true, false}) {
    for (const PlacementGroup& group : groups) {
      if ((group.pinned_rank != kNotPinned) != pinned) continue;
      double& load =
          pinned ? loads[static_cast<size_t>(group.pinned_rank)] : *std::min_element(loads.begin(), loads.end());
      load += group.prefix_s + group.suffixes_s;
    }
  }
  return *std::max_element(loads.begin(), loads.end());
}

std::vector<int32_t> RoundRobin(size_t groups, int32_t ranks) {
  std::vector<int32_t> on(groups);
  for (size_t g = 0; g < groups; ++g) on[g] = static_cast<int32_t>(g) % ranks;
  return on;
}

TEST(PlacementTest, DrawnGroupsAreWithinAThousandthOfTheBoundAndRoundRobinIsNot) {
  const struct {
    int64_t groups;
    int32_t ranks;
  } cases[] = {{64, 2}, {128, 8}, {256, 8}, {1024, 64}, {4096, 64}, {16384, 64}};
  for (const auto& [count, ranks] : cases) {
    for (const uint64_t seed : {1, 2, 3, 4, 5}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << count << " groups, " << ranks << " ranks");
      std::mt19937_64 random(seed);
      const std::vector<PlacementGroup> groups = DrawGroups(count, random);
      const Placement placement = Place(groups, ranks);
      EXPECT_LE(placement.over_bound(), kBar);
      EXPECT_NEAR(placement.imbalance(), placement.max_s() * ranks / Sum(groups), kRounding);
      EXPECT_GT(Reported(groups, RoundRobin(groups.size(), ranks), ranks).over_bound(), kBar);
    }
  }
}

TEST(PlacementTest, FewGroupsAreNeverWorseThanLargestFirstPromises) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const auto ranks = static_cast<int32_t>(1 + random() % 4);
    std::vector<PlacementGroup> groups = DrawGroups(static_cast<int64_t>(random() % 10), random);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << groups.size() << " groups, " << ranks << " ranks");
    EXPECT_LE(Place(groups, ranks).max_s(), (4.0 / 3 - 1.0 / (3 * ranks)) * BestOfAll(groups, ranks) * (1 + kRounding));
    for (PlacementGroup& group : groups) {
      if (random() % 3 == 0) group.pinned_rank = static_cast<int32_t>(random() % static_cast<uint64_t>(ranks));
    }
    EXPECT_LE(Place(groups, ranks).max_s(), (2 - 1.0 / ranks) * BestOfAll(groups, ranks) * (1 + kRounding));
  }
}

TEST(PlacementTest, ExchangesLeaveTheFullestRankNoFuller) {
  int better = 0;
  for (uint64_t seed = 101; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto ranks = static_cast<int32_t>(2 + random() % 6);
    std::vector<PlacementGroup> groups = DrawGroups(DrawSize(4, 40, random), random);
    for (PlacementGroup& group : groups) {
      if (random() % 8 == 0) group.pinned_rank = static_cast<int32_t>(random() % static_cast<uint64_t>(ranks));
    }
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << groups.size() << " groups, " << ranks << " ranks");
    const double before = LargestFirst(groups, ranks), after = Place(groups, ranks).max_s();
    EXPECT_LE(after, before * (1 + kRounding));
    if (after < before * (1 - kRounding)) ++better;
  }
  EXPECT_GT(better, 50) << "of 200";
}

// Largest first alone puts 3 + 2 + 2 on one rank and 3 + 2 on the other.
TEST(PlacementTest, RanksExchangeGroupsWhereLargestFirstIsNotTheBest) {
  const Placement placement = Place(Costing({3, 3, 2, 2, 2}), 2);
  EXPECT_EQ(placement.max_s(), 6);
  EXPECT_EQ(placement.over_bound(), 0);
  EXPECT_EQ(placement.ranks[0], placement.ranks[1]);
}

TEST(PlacementTest, APrefixIsChargedOnceAndSuffixesInFull) {
  // Both cost 10; a placement that forgets either part sees 9 and 1.
  const std::vector<PlacementGroup> groups = {{.prefix_s = 9, .suffixes_s = 1}, {.prefix_s = 1, .suffixes_s = 9}};
  const Placement placement = Place(groups, 2);
  EXPECT_EQ(placement.loads_s, (std::vector<double>{10, 10}));
  EXPECT_EQ(placement.bound_s, 10);
}

TEST(PlacementTest, EqualGroupsAreDealtEvenly) {
  const Placement placement = Place(Costing(std::vector<double>(64, 1.5)), 8);
  EXPECT_EQ(placement.loads_s, std::vector<double>(8, 12));
  EXPECT_EQ(placement.imbalance(), 1);
  EXPECT_EQ(placement.over_bound(), 0);
  EXPECT_EQ(placement.ranks, RoundRobin(64, 8)) << "of equal groups the first, of equal ranks the first";
}

TEST(PlacementTest, FewerGroupsThanRanksLeaveRanksEmpty) {
  const Placement placement = Place(Costing({1, 5, 3}), 5);
  EXPECT_EQ(placement.ranks, (std::vector<int32_t>{2, 0, 1}));
  EXPECT_EQ(placement.loads_s, (std::vector<double>{5, 3, 1, 0, 0}));
  EXPECT_EQ(placement.bound_s, 5);
  EXPECT_DOUBLE_EQ(placement.imbalance(), 25.0 / 9);
}

TEST(PlacementTest, WithoutGroupsAllRanksAreEmpty) {
  const Placement placement = Place({}, 3);
  EXPECT_EQ(placement.loads_s, std::vector<double>(3, 0));
  EXPECT_EQ(placement.imbalance(), 1);
  EXPECT_EQ(placement.over_bound(), 0);
}

TEST(PlacementTest, AGroupWithHalfOfEverythingIsAlone) {
  std::mt19937_64 random(7);
  std::vector<PlacementGroup> groups = DrawGroups(63, random);
  groups.push_back({.prefix_s = Sum(groups) / 8, .suffixes_s = Sum(groups) * 7 / 8});
  const Placement placement = Place(groups, 4);
  EXPECT_EQ(std::count(placement.ranks.begin(), placement.ranks.end(), placement.ranks.back()), 1);
  EXPECT_EQ(placement.over_bound(), 0) << "no placement of whole groups is better";
  EXPECT_NEAR(placement.imbalance(), 2, kRounding) << "though half of the ranks' time is waited for";
}

TEST(PlacementTest, GroupsThatCostNothingAreSpread) {
  const Placement placement = Place(Costing(std::vector<double>(9, 0)), 3);
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(std::count(placement.ranks.begin(), placement.ranks.end(), rank), 3) << "rank " << rank;
  }
  EXPECT_EQ(placement.bound_s, 0);
  EXPECT_EQ(placement.imbalance(), 1);
  EXPECT_EQ(placement.over_bound(), 0);
}

TEST(PlacementTest, TheSameGroupsAreAlwaysOnTheSameRanks) {
  for (const uint64_t seed : {11, 12, 13}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<PlacementGroup> groups = DrawGroups(200, random);
    for (size_t g = 0; g < groups.size(); g += 3) groups[g] = groups[0];  // ties
    const Placement first = PlaceGroups(groups, 7), second = PlaceGroups(std::vector(groups), 7);
    EXPECT_EQ(first.ranks, second.ranks);
    EXPECT_EQ(first.loads_s, second.loads_s);
    EXPECT_EQ(first.bound_s, second.bound_s);
  }
}

// An entry pass places all groups; each mini-batch then keeps a group where its log-probs are.
TEST(PlacementTest, PinnedGroupsStayWhereAnEarlierPassPlacedThem) {
  for (const uint64_t seed : {21, 22, 23, 24}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<PlacementGroup> groups = DrawGroups(300, random);
    const Placement entry = Place(groups, 6);
    for (size_t g = 0; g < groups.size(); ++g) groups[g].pinned_rank = entry.ranks[g];
    std::shuffle(groups.begin(), groups.end(), random);
    for (size_t begin = 0; begin < groups.size(); begin += 100) {
      Place(std::vector<PlacementGroup>(groups.begin() + static_cast<int64_t>(begin),
                                        groups.begin() + static_cast<int64_t>(begin) + 100),
            6);
    }
  }
}

TEST(PlacementTest, GroupsThatAreNotPinnedGoAroundThePinnedOnes) {
  std::vector<PlacementGroup> groups = Costing({4, 4, 1, 1, 1, 1, 1, 1, 1, 1});
  groups[0].pinned_rank = groups[1].pinned_rank = 1;
  const Placement placement = Place(groups, 3);
  EXPECT_EQ(placement.loads_s, (std::vector<double>{4, 8, 4}));
  EXPECT_EQ(placement.bound_s, 8) << "what is pinned to one rank is a bound";
}

// Exchanges look for better places, and a pinned group would often have one.
TEST(PlacementTest, ExchangesMoveNoPinnedGroup) {
  for (uint64_t seed = 31; seed < 51; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<PlacementGroup> groups = DrawGroups(DrawSize(8, 60, random), random);
    for (PlacementGroup& group : groups) {
      if (random() % 4 == 0) group.pinned_rank = static_cast<int32_t>(random() % 4);
    }
    Place(groups, 4);
  }
}

TEST(PlacementDeathTest, AnImpossiblePlacementIsOurOwnMistake) {
  std::vector<PlacementGroup> groups = Costing({1, 2});
  EXPECT_DEATH(PlaceGroups(groups, 0), "ranks");
  groups[1].pinned_rank = 2;
  EXPECT_DEATH(PlaceGroups(groups, 2), "group 1 is pinned to rank 2");
  groups = {{.suffixes_s = std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_DEATH(PlaceGroups(groups, 2), "group 0 costs");
}

}  // namespace
}  // namespace stemma::server
