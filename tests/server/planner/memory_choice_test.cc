// The choice against brute force over all alternatives, and its two invariants, over a grid of shapes and budgets.
#include "server/planner/memory_choice.h"

#include <algorithm>

#include "common/base/human.h"
#include "common/cost/wave_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/planner/cluster_ways.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;
using ::testing::HasSubstr;
using testing::kMiB;
using testing::MixedCluster;
using testing::OneGroup;

std::vector<ClusterShape> Shapes() {
  return {OneGroup(1023, 256, 8),  OneGroup(2047, 128, 16), OneGroup(63, 512, 4),
          OneGroup(3000, 40, 2),   OneGroup(1, 900, 3),     OneGroup(1023, 256, 4, /*reuse=*/false),
          OneGroup(5000, 2500, 2), MixedCluster()};
}

// 8 MiB to about 4 GiB, in steps of 1.3.
std::vector<int64_t> Budgets() {
  std::vector<int64_t> budgets;
  for (double bytes = 8.0 * kMiB; bytes < 4096.0 * kMiB; bytes *= 1.3) budgets.push_back(static_cast<int64_t>(bytes));
  return budgets;
}

double BestByBruteForce(const MemoryOptions& options, const ClusterShape& cluster) {
  double best = std::numeric_limits<double>::infinity();
  for (const MemoryAlternative& way : ClusterWays(options, cluster).All()) {
    if (const auto choice = ClusterWays(options, cluster).Evaluate(way)) best = std::min(best, choice->seconds.total());
  }
  return best;
}

TEST(MemoryChoiceTest, NoAlternativeThatFitsIsFaster) {
  int tight = 0;
  for (const ClusterShape& cluster : Shapes()) {
    for (const int64_t budget : Budgets()) {
      const MemoryOptions options = BenchMemory(budget);
      const double best = BestByBruteForce(options, cluster);
      const MemoryAnswer answer = ChooseMemory(options, cluster);
      ASSERT_EQ(answer.choice.has_value(), std::isfinite(best)) << budget;
      if (!answer.choice) continue;
      EXPECT_LE(answer.choice->seconds.total(), best * (1 + 1e-12)) << budget;  // promised: 3 %
      tight += answer.choice->cheapest ? 0 : 1;
    }
  }
  EXPECT_GT(tight, 50) << "the grid must hold budgets that force a choice";
}

// Rows are rounded up there, so a cut into more waves may be the faster one.
TEST(MemoryChoiceTest, NoAlternativeThatFitsIsFasterWhereProductsRunInTiles) {
  int tight = 0;
  for (const ClusterShape& cluster : Shapes()) {
    for (const int64_t budget : Budgets()) {
      MemoryOptions options = BenchMemory(budget);
      options.rates = DefaultRates(RunDtype::kBf16, 1, "cuda NVIDIA H200");
      options.shape.row_quantum = options.rates.row_quantum;
      options.shape.head_chunk_rows = 300;
      options.wave_rows = 900;
      const double best = BestByBruteForce(options, cluster);
      const MemoryAnswer answer = ChooseMemory(options, cluster);
      ASSERT_EQ(answer.choice.has_value(), std::isfinite(best)) << budget;
      if (!answer.choice) continue;
      EXPECT_LE(answer.choice->seconds.total(), best * (1 + 1e-12)) << budget;
      tight += answer.choice->cheapest ? 0 : 1;
    }
  }
  EXPECT_GT(tight, 50) << "the grid must hold budgets that force a choice";
}

TEST(MemoryChoiceTest, AChoiceIsWithinTheBudgetAndTheHost) {
  for (const ClusterShape& cluster : Shapes()) {
    for (const int64_t budget : Budgets()) {
      MemoryOptions options = BenchMemory(budget);
      options.host_bytes = 50 * kMiB;
      const MemoryAnswer answer = ChooseMemory(options, cluster);
      if (!answer.choice) continue;
      EXPECT_LE(answer.choice->peak_bytes, budget);
      EXPECT_LE(answer.choice->host_bytes, options.host_bytes);
      EXPECT_EQ(answer.choice->peak_bytes, std::max({answer.choice->prefix_forward.peak(), answer.choice->suffix.peak(),
                                                     answer.choice->prefix_backward.peak()}));
      int64_t members = 0;
      for (const uint32_t size : answer.choice->wave_sizes) members += size;
      EXPECT_EQ(members, static_cast<int64_t>(cluster.members.size()));
    }
  }
}

TEST(MemoryChoiceTest, SecondsNeverGrowWithALargerBudget) {
  for (const ClusterShape& cluster : Shapes()) {
    double before = std::numeric_limits<double>::infinity();
    for (const int64_t budget : Budgets()) {
      const MemoryAnswer answer = ChooseMemory(BenchMemory(budget), cluster);
      const double seconds = answer.choice ? answer.choice->seconds.total() : std::numeric_limits<double>::infinity();
      EXPECT_LE(seconds, before) << budget;
      before = seconds;
    }
    EXPECT_TRUE(std::isfinite(before));
  }
}

TEST(MemoryChoiceTest, WhatFitsWholeKeepsAllOnTheDevice) {
  const MemoryAnswer answer = ChooseMemory(BenchMemory(8192 * kMiB), OneGroup(1023, 256, 8));
  ASSERT_TRUE(answer.choice);
  EXPECT_TRUE(answer.choice->cheapest);
  EXPECT_EQ(WayText(answer.choice->way), "prefix S0, suffixes S0");
  EXPECT_EQ(answer.choice->wave_sizes, std::vector<uint32_t>{8});
  EXPECT_THAT(MemoryReason(BenchMemory(8192 * kMiB), *answer.choice), HasSubstr("of 8.00 GiB"));
}

// In whichever order they come: a wave needs what its longest prefix and its longest member need.
TEST(MemoryChoiceTest, AWaveOfSeveralGroupsNeedsTheBytesOfItsLongest) {
  const MemberShape small = {.rows = 20, .prefix_rows = 100}, large = {.rows = 300, .prefix_rows = 900, .prefix = 1};
  const MemberShape dense = {.rows = 40, .prefix_rows = 60, .dense = true};
  const MemoryOptions options = BenchMemory(8192 * kMiB);
  for (const std::vector<MemberShape>& members :
       {std::vector{small, large, dense}, std::vector{large, dense, small}, std::vector{dense, small, large}}) {
    const ClusterShape cluster = {.prefix_rows = {100, 900}, .members = members};
    const MemoryAnswer answer = ChooseMemory(options, cluster);
    ASSERT_TRUE(answer.choice);
    EXPECT_EQ(answer.choice->wave_sizes, std::vector<uint32_t>{3});
    WaveShape wave = {.rows = 20 + 300 + 100, .kv_only_rows = 60};
    AddRun({.rows = 20, .longest_rows = 20, .ancestor_rows = 100}, wave);
    AddRun({.rows = 300, .longest_rows = 300, .ancestor_rows = 900}, wave);
    AddRun({.rows = 100, .longest_rows = 100, .kv_only_rows = 60}, wave);
    EXPECT_EQ(answer.choice->suffix.peak(), SuffixBytes(options.shape, answer.choice->way.prefix, wave).peak());
    EXPECT_EQ(answer.choice->way.prefix.lengths, (std::vector<int64_t>{100, 900}));
  }
}

// Many threads beside a small MLP and a small head: the blocks of scores decide, of the longest prefix where there is
// one, else of the longest member.
TEST(MemoryChoiceTest, AWavesBlocksOfScoresAreThoseOfItsLongest) {
  MemoryOptions options = BenchMemory(8192 * kMiB);
  options.shape.threads = 64;
  options.shape.config.ffn_size = 64;
  options.shape.config.vocab_size = 128;
  const auto expect = [&](const ClusterShape& cluster, const WaveShape& wave, const WaveShape& of_another) {
    const MemoryAnswer answer = ChooseMemory(options, cluster);
    ASSERT_TRUE(answer.choice);
    EXPECT_EQ(answer.choice->wave_sizes, std::vector<uint32_t>{2});
    const PrefixShape& prefix = answer.choice->way.prefix;
    EXPECT_EQ(answer.choice->suffix.peak(), SuffixBytes(options.shape, prefix, wave).peak());
    EXPECT_GT(answer.choice->suffix.peak(), SuffixBytes(options.shape, prefix, of_another).peak()) << "control";
  };
  const MemberShape small = {.rows = 40, .prefix_rows = 20}, large = {.rows = 40, .prefix_rows = 400, .prefix = 1};
  const MemberShape brief = {.rows = 20, .dense = true}, lengthy = {.rows = 300, .dense = true};
  for (const bool swapped : {false, true}) {
    const auto both = [&](const MemberShape& a, const MemberShape& b) {
      return swapped ? std::vector{b, a} : std::vector{a, b};
    };
    expect({.prefix_rows = {20, 400}, .members = both(small, large)}, {.rows = 80, .runs = {{40, 40, 400, 0}}},
           {.rows = 80, .runs = {{40, 40, 20, 0}}});
    expect({.prefix_rows = {}, .members = both(brief, lengthy)}, {.rows = 320, .runs = {{300, 300, 0, 0}}},
           {.rows = 320, .runs = {{20, 20, 0, 0}}});
  }
}

// A wave takes as many rows as are worth packing, and exactly so many.
TEST(MemoryChoiceTest, AWaveTakesExactlyTheRowsThatAreWorthPacking) {
  const MemoryOptions options = BenchMemory(int64_t{1} << 40);
  EXPECT_EQ(ChooseMemory(options, OneGroup(100, 512, 8)).choice->wave_sizes, (std::vector<uint32_t>{4, 4}));
  EXPECT_EQ(ChooseMemory(options, OneGroup(100, 513, 8)).choice->wave_sizes, (std::vector<uint32_t>{3, 3, 2}));
}

// In whichever order the waves come.
TEST(MemoryChoiceTest, PhaseBNeedsTheBytesOfItsLargestWave) {
  MemoryOptions options = BenchMemory(8192 * kMiB);
  options.wave_suffixes = 1;
  const MemberShape small = {.rows = 20, .prefix_rows = 100}, large = {.rows = 600, .prefix_rows = 100};
  for (const std::vector<MemberShape>& members : {std::vector{small, large}, std::vector{large, small}}) {
    const MemoryAnswer answer = ChooseMemory(options, {.prefix_rows = {100}, .members = members});
    ASSERT_TRUE(answer.choice);
    const WaveShape wave = {.rows = 600, .runs = {{600, 600, 100, 0}}};
    EXPECT_EQ(answer.choice->suffix.peak(), SuffixBytes(options.shape, answer.choice->way.prefix, wave).peak());
  }
}

TEST(MemoryChoiceTest, AWaveMayFillTheBudgetExactly) {
  MemoryOptions options = BenchMemory(int64_t{1} << 40);
  const ClusterShape cluster = OneGroup(100, 400, 2);
  const MemoryAlternative way = {.prefix = {.rows = 100}, .suffix_policy = v1::S0};
  options.budget_bytes = ClusterWays(options, cluster).Evaluate(way)->suffix.peak();
  EXPECT_EQ(ClusterWays(options, cluster).Evaluate(way)->wave_sizes, std::vector<uint32_t>{2});
  --options.budget_bytes;
  EXPECT_EQ(ClusterWays(options, cluster).Evaluate(way)->wave_sizes, (std::vector<uint32_t>{1, 1}));
}

TEST(MemoryChoiceTest, TheReasonOfATightChoiceNamesWhatAllWouldNeed) {
  const ClusterShape cluster = OneGroup(2047, 128, 16);
  const int64_t all = ChooseMemory(BenchMemory(int64_t{1} << 40), cluster).choice->peak_bytes;
  const MemoryAnswer answer = ChooseMemory(BenchMemory(all - 1), cluster);
  ASSERT_TRUE(answer.choice);
  EXPECT_FALSE(answer.choice->cheapest);
  EXPECT_THAT(MemoryReason(BenchMemory(all - 1), *answer.choice),
              HasSubstr("prefix S0, suffixes S0 in 1 waves needs " + HumanBytes(static_cast<double>(all))));
}

TEST(MemoryChoiceTest, TheReasonOfATightHostNamesItsBytesToo) {
  const ClusterShape cluster = OneGroup(1023, 256, 8);
  MemoryOptions options = BenchMemory(4096 * kMiB);
  options.offload = v1::OFFLOAD_ON;
  const int64_t all = HostTapeBytes(options.shape, {.rows = 1023, .policy = v1::S1, .offload = true});
  options.host_bytes = all * 3 / 4;
  const MemoryAnswer answer = ChooseMemory(options, cluster);
  ASSERT_TRUE(answer.choice);
  const auto text = [](int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); };
  EXPECT_THAT(MemoryReason(options, *answer.choice),
              HasSubstr(" and " + text(all) + " of the host's " + text(options.host_bytes)));
}

TEST(MemoryChoiceTest, ForcedFieldsAreObeyed) {
  MemoryOptions options = BenchMemory(4096 * kMiB);
  options.prefix_policy = v1::S3;
  options.suffix_policy = v1::S2;
  options.prefix_block_rows = 100;
  options.offload = v1::OFFLOAD_ON;
  options.wave_suffixes = 3;
  const MemoryAnswer answer = ChooseMemory(options, OneGroup(1023, 256, 8));
  ASSERT_TRUE(answer.choice);
  EXPECT_EQ(WayText(answer.choice->way), "prefix S3 offloaded in blocks of 100 rows, suffixes S2");
  EXPECT_EQ(answer.choice->wave_sizes, (std::vector<uint32_t>{3, 3, 2}));
}

TEST(MemoryChoiceTest, WhereNothingFitsTheFewestBytesAreNamedAndDo) {
  const ClusterShape cluster = OneGroup(1023, 256, 8);
  const MemoryAnswer small = ChooseMemory(BenchMemory(kMiB), cluster);
  ASSERT_FALSE(small.choice);
  EXPECT_EQ(small.host_bytes_needed, 0);
  EXPECT_TRUE(ChooseMemory(BenchMemory(small.bytes_needed), cluster).choice);
  EXPECT_FALSE(ChooseMemory(BenchMemory(small.bytes_needed - 1), cluster).choice);
}

TEST(MemoryChoiceTest, AHostThatIsTooSmallIsToldFromADeviceThatIs) {
  const ClusterShape cluster = OneGroup(1023, 256, 8);
  MemoryOptions options = BenchMemory(4096 * kMiB);
  options.offload = v1::OFFLOAD_ON;
  options.prefix_policy = v1::S0;
  options.host_bytes = kMiB;
  const MemoryAnswer answer = ChooseMemory(options, cluster);
  ASSERT_FALSE(answer.choice);
  EXPECT_EQ(answer.host_bytes_needed, HostTapeBytes(options.shape, {.rows = 1023, .policy = v1::S0, .offload = true}));
  options.host_bytes = answer.host_bytes_needed;
  EXPECT_TRUE(ChooseMemory(options, cluster).choice);
}

TEST(MemoryChoiceTest, AForwardOnlyPassHasNoPolicyAndTakesFewerBytes) {
  MemoryOptions options = BenchMemory(4096 * kMiB);
  const ClusterShape cluster = OneGroup(1023, 256, 8);
  const int64_t both = ChooseMemory(options, cluster).choice->peak_bytes;
  options.forward_only = true;
  options.suffix_policy = v1::S4;  // of a tape: there is none
  const MemoryAnswer answer = ChooseMemory(options, cluster);
  ASSERT_TRUE(answer.choice);
  for (const MemoryAlternative& way : ClusterWays(options, cluster).All()) {  // blocks are all that is left to choose
    EXPECT_EQ(way.prefix.policy, v1::S0);
    EXPECT_EQ(way.suffix_policy, v1::S0);
    EXPECT_FALSE(way.prefix.offload);
  }
  EXPECT_LT(answer.choice->peak_bytes, both / 2);
  EXPECT_EQ(answer.choice->seconds.prefix_backward, 0);
}

// Phase A's working set counts, and where it does not fit, the prefixes are computed in blocks.
TEST(MemoryChoiceTest, AForwardOnlyPassIsPlannedInBlocksWhereItDoesNotFitAtOnce) {
  MemoryOptions options = BenchMemory(4096 * kMiB);
  options.forward_only = true;
  const ClusterShape cluster = OneGroup(4000, 16, 2);
  const MemoryAnswer ample = ChooseMemory(options, cluster);
  ASSERT_TRUE(ample.choice);
  EXPECT_EQ(ample.choice->way.prefix.block_rows, 0);
  EXPECT_EQ(ample.choice->peak_bytes, ForwardPrefixBytes(options.shape, ample.choice->way.prefix).peak());
  options.budget_bytes = ample.choice->peak_bytes - 1;
  const MemoryAnswer tight = ChooseMemory(options, cluster);
  ASSERT_TRUE(tight.choice);
  EXPECT_GT(tight.choice->way.prefix.block_rows, 0);
  EXPECT_LE(tight.choice->peak_bytes, options.budget_bytes);
  EXPECT_GT(tight.choice->seconds.prefix_forward, ample.choice->seconds.prefix_forward);
  EXPECT_THAT(MemoryReason(options, *tight.choice), HasSubstr("in blocks of"));
}

}  // namespace
}  // namespace stemma::server
