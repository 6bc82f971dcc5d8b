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
  const auto keys_of = [](int64_t keys, int64_t most) {
    return worker::cuda::KeysOfFasterCall({.rows = 64, .keys = keys, .heads = 8, .head_size = 128}, most, 0);
  };
  EXPECT_EQ(keys_of(128, 128), 128) << "no other call is made";
  EXPECT_EQ(keys_of(129, 128), 0);
  EXPECT_EQ(keys_of(1100, 1024), 1024);
  EXPECT_EQ(keys_of(1023, 896), 0);
  EXPECT_EQ(keys_of(10239, 10112), 10112);
  EXPECT_EQ(keys_of(500, 0), 0);
}

TEST(AttentionChoiceTest, ACallThatDoesNotPayForItsPlanHasNone) {
  const auto keys_of = [](int64_t rows, int64_t heads, int64_t head_size, double flops_min) {
    const worker::cuda::PrefixCall call = {.rows = rows, .keys = 1100, .heads = heads, .head_size = head_size};
    return worker::cuda::KeysOfFasterCall(call, 1024, flops_min);
  };
  constexpr double kFlops = 4.0 * 2048 * 1024 * 32 * 128;
  EXPECT_EQ(keys_of(2048, 32, 128, kFlops), 1024);
  EXPECT_EQ(keys_of(2047, 32, 128, kFlops), 0);
  EXPECT_EQ(keys_of(2048, 31, 128, kFlops), 0);
  EXPECT_EQ(keys_of(2048, 32, 127, kFlops), 0);
  EXPECT_EQ(keys_of(1 << 20, 64, 128, kFlops), 1024) << "no number overflows";
  // A wave of one suffix of each split that the bench measures, and a group of a small model.
  using worker::cuda::kFlopsWorthAPlan;
  const auto is_worth_it = [](int64_t rows, int64_t keys, int64_t heads) {
    return worker::cuda::KeysOfFasterCall({rows, keys, heads, 128}, keys / 128 * 128, kFlopsWorthAPlan) > 0;
  };
  EXPECT_TRUE(is_worth_it(2048, 10239, 32) && is_worth_it(4096, 8191, 32) && is_worth_it(10240, 2047, 32));
  EXPECT_FALSE(is_worth_it(1200, 1500, 8));
}

}  // namespace
}  // namespace stemma::testing
