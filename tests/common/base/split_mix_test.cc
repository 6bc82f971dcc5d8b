#include "common/base/split_mix.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

// The first numbers of the reference implementation (splitmix64.c) from state 1234567.
TEST(SplitMix64Test, GivesTheNumbersOfTheReference) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
  EXPECT_EQ(random.Next(), 4593380528125082431u);
  EXPECT_EQ(random.Next(), 16408922859458223821u);
}

// Vectors of the FNV project itself.
TEST(Fnv1aTest, GivesTheHashesOfTheReference) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8u);
}

}  // namespace
}  // namespace stemma
