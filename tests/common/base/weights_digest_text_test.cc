#include "common/base/weights_digest_text.h"

#include <gtest/gtest.h>

#include <string>

namespace stemma {
namespace {

TEST(WeightsDigestTextTest, DigestsOfOneKindAreCompared) {
  EXPECT_TRUE(WeightsDiffer(WeightsDigestText("aa"), WeightsDigestText("ab")));
  EXPECT_FALSE(WeightsDiffer(WeightsDigestText("aa"), WeightsDigestText("aa")));
  EXPECT_TRUE(WeightsDiffer("aa", "ab")) << "both of an earlier version";
}

TEST(WeightsDigestTextTest, HasALengthOfItsOwn) {
  const std::string hex(64, 'a');
  EXPECT_EQ(WeightsDigestText(hex), "2:" + hex.substr(2));
}

TEST(WeightsDigestTextTest, WhatCannotBeComparedDoesNotDiffer) {
  EXPECT_FALSE(WeightsDiffer("aa", WeightsDigestText("ab"))) << "of an earlier version, and of this one";
  EXPECT_FALSE(WeightsDiffer(WeightsDigestText("ab"), "aa"));
  EXPECT_FALSE(WeightsDiffer("", WeightsDigestText("ab")));
  EXPECT_FALSE(WeightsDiffer("aa", ""));
}

}  // namespace
}  // namespace stemma
