#include "common/base/arrays.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;
using testing::IsOk;

TEST(ArraysTest, ElementsAreLittleEndianAndNeedNoAlignment) {
  const std::string bytes("x\x01\x00\x00\x00\xff\xff\xff\xff", 9);
  const TokenArray tokens(std::string_view(bytes).substr(1));
  ASSERT_EQ(tokens.size(), 2);
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(tokens[1], -1);
  EXPECT_EQ(tokens.ToVector(), (std::vector<int32_t>{1, -1}));
}

TEST(ArraysTest, PackedArraysReadBack) {
  const std::vector<float> values = {1.5f, -0.0f, 3e38f};
  EXPECT_EQ(FloatArray(PackArray(values)).ToVector(), values);
  EXPECT_EQ(PackArray(std::vector<float>{}), "");
}

TEST(ArraysTest, MaskBitsComeLeastSignificantFirst) {
  const std::vector<bool> bits = {true, false, false, true, false, false, false, false, true, true};
  const std::string bytes = PackMask(bits);
  EXPECT_EQ(bytes, "\x09\x03");
  const MaskView mask(bytes, 10);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(mask[i], bits[i]) << i;
  EXPECT_EQ(mask.CountOnes(), 4);
}

TEST(ArraysTest, AnEmptyMaskIsAllOnes) {
  const MaskView mask("", 3);
  EXPECT_TRUE(mask[2]);
  EXPECT_EQ(mask.CountOnes(), 3);
}

TEST(ArraysTest, WrongLengthsAndStrayBitsAreFound) {
  EXPECT_THAT(CheckArraySize("12345678", 2, 4), IsOk());
  EXPECT_THAT(CheckArraySize("1234567", 2, 4), Invalid("7 bytes"));
  EXPECT_THAT(CheckArraySize("1234", 2, 4), Invalid("4 bytes"));
  EXPECT_THAT(CheckMask("", 9), IsOk());
  EXPECT_THAT(CheckMask(std::string("\xff\x01", 2), 9), IsOk());
  EXPECT_THAT(CheckMask(std::string("\xff\x02", 2), 9), Invalid("beyond the 9"));
  EXPECT_THAT(CheckMask("\xff", 9), Invalid("must have 2"));
}

}  // namespace
}  // namespace stemma
