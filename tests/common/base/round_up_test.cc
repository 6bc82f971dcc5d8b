#include "common/base/round_up.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(RoundUpTest, GivesTheLeastMultipleThatIsNotBelow) {
  for (const int64_t unit : {1, 2, 16, 63, 64}) {
    for (int64_t value = 0; value < 200; ++value) {
      const int64_t up = RoundUp(value, unit);
      EXPECT_EQ(up % unit, 0) << value << " " << unit;
      EXPECT_GE(up, value) << unit;
      EXPECT_LT(up, value + unit);
      EXPECT_EQ(DivideUp(value, unit) * unit, up);
    }
  }
}

TEST(RoundUpTest, NumbersNearTheLargestDoNotOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(RoundUp(kMax, int64_t{1}), kMax);
  EXPECT_EQ(DivideUp(kMax, kMax), 1);
  EXPECT_EQ(DivideUp(kMax, int64_t{2}), kMax / 2 + 1);
}

}  // namespace
}  // namespace stemma
