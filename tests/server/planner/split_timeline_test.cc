#include "server/planner/split_timeline.h"

#include <vector>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

TEST(SplitTimelineTest, RanksWaitForEachOtherAndForNobodyElse) {
  // Owner 1, helper 0 that comes late, helper 2 that waits for its turn.
  const SharedGroup group = {
      .ranks = {1, 0, 2}, .waves_s = {4, 1, 2}, .forward_s = 10, .backward_s = 5, .send_s = 1, .return_s = 3};
  const Timeline t = RunTimeline({{group}}, {{12, 0}, {0, 0}, {0, 7}, {2, 1}});
  // K/V: 12 to 13 with rank 0, 13 to 14 with rank 2. Waves end at 14, 18 and 16. gK/gV: 18 to 21, 21 to 24.
  EXPECT_EQ(t.finish_s, (std::vector<double>{21, 29, 31, 3}));
  EXPECT_EQ(t.exchange_s, (std::vector<double>{1 + 7, 4 + 6, 14 + 8, 0}));
  EXPECT_EQ(t.max_s(), 31);
}

// In a pass without backward a helper goes on when its waves have ended, whatever the owner still does.
TEST(SplitTimelineTest, WhereNothingComesBackNobodyWaitsForIt) {
  const SharedGroup group = {
      .ranks = {0, 1}, .waves_s = {9, 1}, .forward_s = 2, .send_s = 1, .return_s = 0, .returns = false};
  const Timeline t = RunTimeline({{group}}, {{0, 0}, {0, 4}});
  EXPECT_EQ(t.finish_s, (std::vector<double>{12, 8}));
  EXPECT_EQ(t.exchange_s, (std::vector<double>{1, 3}));
}

}  // namespace
}  // namespace stemma::server
