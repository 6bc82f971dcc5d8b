#include "common/base/log_limit.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(LogLimitTest, OneLineInTenSecondsSaysHowManyWereLeftOut) {
  LogLimit limit(1);
  const absl::Time start = absl::FromUnixSeconds(100);
  EXPECT_TRUE(limit.Take(start));
  EXPECT_EQ(limit.LeftOut(), "");
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(limit.Take(start + absl::Seconds(i)));
  EXPECT_FALSE(limit.Take(start + absl::Seconds(9.99)));
  EXPECT_TRUE(limit.Take(start + absl::Seconds(10)));
  EXPECT_EQ(limit.LeftOut(), " (8 more since the line before)");
  EXPECT_EQ(limit.LeftOut(), "");
  EXPECT_FALSE(limit.Take(start + absl::Seconds(11)));
  EXPECT_TRUE(limit.Take(start + absl::Seconds(20)));
}

TEST(LogLimitTest, SeveralLinesMayCome) {
  LogLimit limit(3);
  const absl::Time start = absl::FromUnixSeconds(100);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.Take(start + absl::Seconds(i)), i < 3) << i;
  EXPECT_TRUE(limit.Take(start + absl::Seconds(10)));
  EXPECT_EQ(limit.LeftOut(), " (2 more since the line before)");
}

}  // namespace
}  // namespace stemma
