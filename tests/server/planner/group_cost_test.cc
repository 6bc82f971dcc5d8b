// What placement is told that a group costs: its prefix once, in the way that the planner takes.
#include "server/planner/group_cost.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;

constexpr int64_t kLoose = int64_t{1} << 50;

PackingGroup Group(int64_t prefix_rows, int64_t rows, uint32_t rollouts) {
  PackingGroup group;
  group.prefix_rows = prefix_rows;
  for (uint32_t i = 0; i < rollouts; ++i) group.members.push_back({i, rows});
  return group;
}

TEST(GroupCostTest, AReusedGroupIsChargedItsPrefixOnce) {
  MemoryChooser chooser(BenchMemory(kLoose));
  PackingGroup four = Group(1500, 300, 4), eight = Group(1500, 300, 8);
  ChooseReuse(chooser, v1::AUTO, 0.5, four);
  ChooseReuse(chooser, v1::AUTO, 0.5, eight);
  ASSERT_TRUE(four.reuse && eight.reuse);
  const PlacementGroup of_four = PlacementGroupOf(chooser, four), of_eight = PlacementGroupOf(chooser, eight);
  EXPECT_GT(of_four.prefix_s, 0);
  EXPECT_EQ(of_four.prefix_s, of_eight.prefix_s);
  EXPECT_GT(of_eight.suffixes_s, 1.5 * of_four.suffixes_s);  // waves of several rollouts: not quite twice
  EXPECT_DOUBLE_EQ(of_eight.total_s(), GroupCostOf(chooser, eight).seconds_reuse());
  EXPECT_EQ(of_eight.pinned_rank, kNotPinned);
}

TEST(GroupCostTest, ADenseGroupIsChargedEachTrajectory) {
  MemoryChooser chooser(BenchMemory(kLoose));
  PackingGroup group = Group(1500, 300, 8);
  ChooseReuse(chooser, v1::DENSE, 0.5, group);
  const PlacementGroup cost = PlacementGroupOf(chooser, group);
  EXPECT_EQ(cost.prefix_s, 0);
  EXPECT_DOUBLE_EQ(cost.suffixes_s, GroupCostOf(chooser, group).seconds_dense());
}

TEST(GroupCostTest, TheCheaperWayIsCharged) {
  MemoryChooser chooser(BenchMemory(kLoose));
  for (const uint32_t rollouts : {1u, 16u}) {
    PackingGroup group = Group(1500, 300, rollouts);
    ChooseReuse(chooser, v1::AUTO, 0.5, group);
    const v1::GroupCost cost = GroupCostOf(chooser, group);
    EXPECT_DOUBLE_EQ(PlacementGroupOf(chooser, group).total_s(), std::min(cost.seconds_reuse(), cost.seconds_dense()))
        << rollouts << " rollouts";
  }
}

// eta is what a suffix costs by itself; all that sharing adds is epsilon's.
TEST(GroupCostTest, MergingCountsAsSharing) {
  MemoryOptions slow_merge = BenchMemory(kLoose);
  slow_merge.rates[kMerge] *= 10;
  MemoryChooser chooser(BenchMemory(kLoose)), slow(std::move(slow_merge));
  const v1::GroupCost cost = GroupCostOf(chooser, Group(1500, 300, 8)),
                      of_slow = GroupCostOf(slow, Group(1500, 300, 8));
  EXPECT_DOUBLE_EQ(cost.eta(), of_slow.eta());
  EXPECT_GT(of_slow.epsilon(), cost.epsilon());
}

TEST(GroupCostTest, WhatHasAPrefixAndFitsCanBeReusedToBeShared) {
  MemoryChooser chooser(BenchMemory(kLoose)), small(BenchMemory(1 << 20));
  PackingGroup group = Group(3, 300, 2), none = Group(0, 300, 2), large = Group(1500, 300, 2);
  EXPECT_TRUE(ReuseToShare(chooser, group).has_value());
  EXPECT_TRUE(group.reuse);
  EXPECT_FALSE(ReuseToShare(chooser, none).has_value()) << "no prefix";
  EXPECT_FALSE(ReuseToShare(small, large).has_value()) << "does not fit";
  EXPECT_FALSE(none.reuse || large.reuse);
}

// Suffixes may still be cut between ranks, and whole trajectories are not.
TEST(GroupCostTest, WhatFitsInNoWayIsReused) {
  MemoryChooser chooser(BenchMemory(1 << 20));
  PackingGroup group = Group(1500, 300, 4);
  EXPECT_EQ(ChooseReuse(chooser, v1::AUTO, 0.5, group), "reuse: a whole trajectory does not fit the budget");
  EXPECT_TRUE(group.reuse);
}

TEST(GroupCostTest, AGroupThatCannotRunCostsNothing) {
  MemoryChooser chooser(BenchMemory(1 << 20));
  EXPECT_EQ(PlacementGroupOf(chooser, Group(1500, 300, 0)).total_s(), 0);
  EXPECT_EQ(PlacementGroupOf(chooser, Group(1500, 300, 4)).total_s(), 0) << "does not fit";
}

}  // namespace
}  // namespace stemma::server
