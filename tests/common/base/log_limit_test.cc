#include "common/base/log_limit.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(LogLimitTest, OneLineInTenSecondsSaysHowManyWereLeftOut) {
  LogLimit limit;
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

}  // namespace
}  // namespace stemma
