#include "server/planner/split_parts.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using Places = std::vector<std::vector<size_t>>;

TEST(SplitPartsTest, GroupsThatFitWhileTheOwnerComputesThePrefixComeFirst) {
  const std::vector<PlacementGroup> groups = {
      {.suffixes_s = 4}, {.suffixes_s = 7}, {.suffixes_s = 3}, {.suffixes_s = 2}};
  const SharedGroup shared = {
      .ranks = {1, 0}, .waves_s = {5, 5}, .forward_s = 10, .backward_s = 20, .send_s = 1, .return_s = 1};
  const auto whole = OrderAround(groups, {{shared}}, {{0, 1, 2}, {3}});
  EXPECT_EQ(whole[0], (Places{{1, 2}, {0}})) << "7 and then 3 of the owner's 10 seconds; 4 no longer fits";
  EXPECT_EQ(whole[1], (Places{{}, {3}})) << "nobody waits for the owner's own groups";
}

// Three equal rollouts on the owner and a helper with a load of 5: largest first gives each its part by when it ends.
TEST(SplitPartsTest, RolloutsGoToTheRankThatEndsFirst) {
  const SplitCosts costs = {.forward_s = 2, .backward_s = 1, .rollouts_s = {3, 3, 3}, .send_s = 0.5, .return_s = 0.5};
  PartsBuilder parts(2, /*work_s=*/17);
  parts.AddPinned(1, 5);
  const auto split = parts.Cut(GroupToSplit(costs), /*most=*/false);
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->ranks, (std::vector<int32_t>{0, 1})) << "the rank with the least to do owns it";
  EXPECT_EQ(split->rollouts, (std::vector<std::vector<uint32_t>>{{0, 2}, {1}}));
  const SharedGroup shared = parts.Add(*split, costs);
  EXPECT_EQ(shared.waves_s, (std::vector<double>{6, 3}));
  EXPECT_EQ(parts.busy_s(), (std::vector<double>{2 + 0.5 + 6 + 0.5 + 1, 0.5 + 3 + 0.5}));
}

TEST(SplitPartsTest, OneRolloutOrOneRankIsNotCut) {
  const SplitCosts one = {.forward_s = 1, .backward_s = 1, .rollouts_s = {3}};
  EXPECT_FALSE(PartsBuilder(4, 5).Cut(GroupToSplit(one), /*most=*/true).has_value());
  const SplitCosts two = {.forward_s = 1, .backward_s = 1, .rollouts_s = {3, 3}};
  EXPECT_FALSE(PartsBuilder(1, 8).Cut(GroupToSplit(two), /*most=*/true).has_value());
  EXPECT_TRUE(PartsBuilder(2, 8).Cut(GroupToSplit(two), /*most=*/true).has_value());
}

}  // namespace
}  // namespace stemma::server
