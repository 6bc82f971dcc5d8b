#include "worker/backend/cuda/attention/attention_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/draw.h"

namespace stemma::testing {
namespace {

using worker::cuda::ChunksOf;

constexpr int64_t kH100 = 132;

// H = 32 query heads: ⌈keys / 128⌉ · 32 blocks a chunk, two rounds of 132 are 264.
TEST(AttentionChoiceTest, ShortPrefixesAreCutUntilTheyFillTwoRounds) {
  struct Row {
    int64_t keys, chunks;
  };
  for (const auto& [keys, chunks] : {Row{1, 8}, Row{128, 8}, Row{129, 4}, Row{256, 4}, Row{384, 4}, Row{512, 2},
                                     Row{640, 3}, Row{1024, 1}, Row{4096, 1}, Row{16384, 1}}) {
    EXPECT_EQ(ChunksOf({.rows = 12288, .keys = keys, .heads = 32}, kH100), chunks) << keys;
  }
}

TEST(AttentionChoiceTest, FewRowsAreNotCut) {
  for (const auto& [rows, chunks] : {std::pair<int64_t, int64_t>{1, 1}, {127, 1}, {255, 1}, {256, 2}, {1024, 8}}) {
    EXPECT_EQ(ChunksOf({.rows = rows, .keys = 128, .heads = 32}, kH100), chunks) << rows;
  }
}

TEST(AttentionChoiceTest, ASmallDeviceIsFullAtOnce) {
  EXPECT_EQ(ChunksOf({.rows = 12288, .keys = 128, .heads = 32}, 1), 1);
  EXPECT_EQ(ChunksOf({.rows = 12288, .keys = 128, .heads = 32}, 16), 1);
}

// The share of its rounds that a call fills; 1 is a device that is never idle.
double ShareOf(int64_t chunks, int64_t keys, int64_t heads, int64_t sms) {
  const int64_t blocks = chunks * ((keys + 127) / 128) * heads;
  return static_cast<double>(blocks) / static_cast<double>((blocks + sms - 1) / sms * sms);
}

TEST(AttentionChoiceTest, ChunksAreBoundedAndNeverIdleMoreThanNone) {
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + 500; ++seed) {
    Draw draw(seed);
    const int64_t rows = draw.LogBetween(1, 70000), keys = draw.LogBetween(1, 40000), heads = draw.LogBetween(1, 64);
    const int64_t sms = draw.Of<int64_t>({16, 108, 132, 148});
    const int64_t chunks = ChunksOf({rows, keys, heads}, sms);
    EXPECT_GE(chunks, 1);
    EXPECT_LE(chunks, std::max<int64_t>(1, rows / 128)) << "seed " << seed;
    EXPECT_GE(ShareOf(chunks, keys, heads, sms), 0.9 * ShareOf(1, keys, heads, sms)) << "seed " << seed;
    if (chunks > 1) {
      EXPECT_LE(chunks * ((keys + 127) / 128) * heads, 4 * sms) << "seed " << seed;
    }
  }
}

TEST(AttentionChoiceTest, KeysAreSplitWhereWhatTheFasterCallGainsIsMoreThanAnotherCallCosts) {
  using worker::cuda::KeysOfFasterCall;
  EXPECT_EQ(KeysOfFasterCall(128, 128), 128) << "no other call is made";
  EXPECT_EQ(KeysOfFasterCall(129, 128), 0);
  EXPECT_EQ(KeysOfFasterCall(1100, 1024), 1024);
  EXPECT_EQ(KeysOfFasterCall(1023, 896), 0);
  EXPECT_EQ(KeysOfFasterCall(10239, 10112), 10112);
  EXPECT_EQ(KeysOfFasterCall(500, 0), 0);
}

}  // namespace
}  // namespace stemma::testing
