#include "common/base/human.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(HumanTest, CountsHaveThreeDigitsAndALetter) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(950), "950");
  EXPECT_EQ(HumanCount(999.9), "1.00k");
  EXPECT_EQ(HumanCount(1000), "1.00k");
  EXPECT_EQ(HumanCount(1'314'000), "1.31M");
  EXPECT_EQ(HumanCount(99'960), "100k");
  EXPECT_EQ(HumanCount(9.5e21), "9.5e+03E");
}

TEST(HumanTest, FlopsAndBytesHaveTheirUnits) {
  EXPECT_EQ(HumanFlops(1.25e12), "1.25 TFLOP");
  EXPECT_EQ(HumanFlops(3.5e19), "35.0 EFLOP");
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(80.0 * (1 << 30)), "80.0 GiB");
}

TEST(HumanTest, SecondsTakeTheUnitThatFits) {
  EXPECT_EQ(HumanSeconds(0), "0 s");
  EXPECT_EQ(HumanSeconds(2.5e-6), "2.50 us");
  EXPECT_EQ(HumanSeconds(0.25), "250 ms");
  EXPECT_EQ(HumanSeconds(0.9996), "1.00 s");
  EXPECT_EQ(HumanSeconds(1.5), "1.50 s");
  EXPECT_EQ(HumanSeconds(200), "3 min 20 s");
  EXPECT_EQ(HumanSeconds(119.6), "2 min 0 s");
  EXPECT_EQ(HumanSeconds(36000), "10.0 h");
}

TEST(HumanTest, RatiosAreMultiples) { EXPECT_EQ(HumanRatio(3.618), "3.62x"); }

}  // namespace
}  // namespace stemma
