#include "server/protocol/calibration_keeper.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {
namespace {

using testing::BenchModel;

v1::RunConfig RunWith(uint32_t threads) {
  v1::RunConfig run;
  run.set_dtype("fp32");
  run.set_threads(threads);
  return run;
}

// A step that took so many seconds: all of a sample that the keeper hands on.
CalibrationSample Sample(double seconds) {
  CalibrationSample sample;
  sample.work.suffix[kLinear] = 1e9 * seconds;
  sample.seconds.suffix = seconds;
  sample.apply_s = seconds;
  return sample;
}

TEST(CalibrationKeeperTest, TheBookIsSavedAfterEightSamplesOrWhenAsked) {
  CalibrationKeeper keeper(BenchModel(), {}, RunWith(2));
  keeper.Start("cpu", RunWith(2));
  EXPECT_EQ(keeper.TakeUnsaved(), std::nullopt) << "nothing is new";
  for (int i = 1; i < 8; ++i) EXPECT_FALSE(keeper.Add(Sample(i))) << i;
  EXPECT_TRUE(keeper.Add(Sample(8)));
  const auto book = keeper.TakeUnsaved();
  ASSERT_TRUE(book.has_value());
  EXPECT_EQ(book->size(), 1u);
  const std::string key = CalibrationKey(BenchModel(), RunWith(2), "cpu");
  ASSERT_TRUE(book->contains(key));
  EXPECT_EQ(book->at(key).size(), 8u);
  EXPECT_EQ(keeper.TakeUnsaved(), std::nullopt);
  EXPECT_FALSE(keeper.Add(Sample(9)));
  EXPECT_TRUE(keeper.TakeUnsaved().has_value());
}

TEST(CalibrationKeeperTest, WhatEarlierRunsTaughtIsGoneOnWith) {
  CalibrationKeeper before(BenchModel(), {}, RunWith(2));
  before.Start("cpu", RunWith(2));
  for (int i = 1; i <= 3; ++i) before.Add(Sample(i));
  CalibrationKeeper keeper(BenchModel(), before.TakeUnsaved().value(), RunWith(2));
  keeper.Start("cpu", RunWith(2));
  EXPECT_EQ(keeper.TakeUnsaved(), std::nullopt) << "nothing is new";
  keeper.Add(Sample(4));
  EXPECT_EQ(keeper.TakeUnsaved()->at(CalibrationKey(BenchModel(), RunWith(2), "cpu")).size(), 4u);
}

// A GPU that is not known has another one's rates, and the log of a start says whose.
TEST(CalibrationKeeperTest, ItSaysWhoseRatesPlansGoBy) {
  CalibrationKeeper keeper(BenchModel(), {}, RunWith(2));
  keeper.Start("cuda Some GPU", RunWith(2));
  EXPECT_EQ(keeper.RatesText(), "default rates (published figures of h100, for want of those of \"cuda Some GPU\")");
  keeper.Start("cpu", RunWith(2));
  EXPECT_EQ(keeper.RatesText(), "default rates (a CPU core)");
  int steps = 0;
  while (!keeper.rates().calibrated && steps < 100) keeper.Add(Sample(++steps));
  EXPECT_EQ(keeper.RatesText(), "rates of " + std::to_string(steps) + " measured steps");
}

TEST(CalibrationKeeperTest, NothingIsLearntFromSecondsThatHoldWaits) {
  const auto learns = [](const char* device, uint32_t stages, v1::ShardParameters shard) {
    v1::RunConfig run = RunWith(2);
    run.mutable_mesh()->set_pp(stages);
    run.mutable_mesh()->set_dp(2);
    run.set_shard_parameters(shard);
    CalibrationKeeper keeper(BenchModel(), {}, run);
    keeper.Start(device, run);
    keeper.Add(Sample(1));
    return keeper.TakeUnsaved().has_value();
  };
  EXPECT_TRUE(learns("cpu", 2, v1::SHARD_PARAMETERS_ON));
  EXPECT_TRUE(learns("cuda NVIDIA H200", 1, v1::SHARD_PARAMETERS_OFF));
  EXPECT_FALSE(learns("cuda NVIDIA H200", 2, v1::SHARD_PARAMETERS_OFF));
  EXPECT_FALSE(learns("cuda NVIDIA H200", 1, v1::SHARD_PARAMETERS_ON));
}

internal::v1::Vote VoteOf(double prefix_forward_s, double suffix_s, double prefix_backward_s) {
  internal::v1::Vote vote;
  vote.mutable_sums()->set_prefix_forward_s(prefix_forward_s);
  vote.mutable_sums()->set_suffix_s(suffix_s);
  vote.mutable_sums()->set_prefix_backward_s(prefix_backward_s);
  return vote;
}

TEST(CalibrationKeeperTest, OfRanksTheSlowestCountsAndStagesAddUp) {
  const std::vector<internal::v1::Vote> votes = {VoteOf(1, 20, 5), VoteOf(2, 10, 4), VoteOf(8, 40, 16),
                                                 VoteOf(4, 80, 32)};
  std::vector<internal::v1::Applied> applied(4);
  applied[2].set_apply_s(3);
  PhaseWork work;
  work.suffix[kLinear] = 7;
  const CalibrationSample one = SampleOfCopy(work, 1, votes, applied), two = SampleOfCopy(work, 2, votes, applied),
                          four = SampleOfCopy(work, 4, votes, applied);
  const auto expect = [&](const CalibrationSample& sample, double forward, double suffix, double backward) {
    EXPECT_EQ(sample.seconds.prefix_forward, forward);
    EXPECT_EQ(sample.seconds.suffix, suffix);
    EXPECT_EQ(sample.seconds.prefix_backward, backward);
    EXPECT_EQ(sample.apply_s, 3) << "stages apply side by side";
    EXPECT_EQ(sample.work.suffix[kLinear], 7);
  };
  expect(one, 8, 80, 32);
  expect(two, 2 + 8, 20 + 80, 5 + 32);
  expect(four, 1 + 2 + 8 + 4, 20 + 10 + 40 + 80, 5 + 4 + 16 + 32);
}

// tp: 2^-9 s a message, 2^-20 s a byte; and of pp the same halved.
std::vector<v1::LinkInfo> MeasuredLinks() {
  std::vector<v1::LinkInfo> links(2);
  links[0].set_axis("tp");
  links[0].set_message_s(std::exp2(-9));
  links[0].set_byte_s(std::exp2(-20));
  links[1].set_axis("pp");
  links[1].set_message_s(std::exp2(-10));
  links[1].set_byte_s(std::exp2(-21));
  return links;
}

TEST(CalibrationKeeperTest, MeasuredLinksTakeThePlaceOfGuesses) {
  CalibrationKeeper keeper(BenchModel(), {}, RunWith(2));
  keeper.Start("cpu", RunWith(2));
  const Rates guessed = keeper.rates();
  keeper.Start("cpu", RunWith(2), MeasuredLinks());
  EXPECT_EQ(keeper.rates()[kTensorCollective], std::exp2(-9));
  EXPECT_EQ(keeper.rates()[kTensorByte], std::exp2(-20));
  EXPECT_EQ(keeper.rates()[kStageMessage], std::exp2(-10));
  EXPECT_EQ(keeper.rates()[kStageByte], std::exp2(-21));
  EXPECT_EQ(keeper.rates()[kContextByte], guessed[kContextByte]) << "was not measured";
  EXPECT_EQ(keeper.rates()[kLinear], guessed[kLinear]);
  EXPECT_FALSE(keeper.rates().calibrated);
  keeper.Start("cpu", RunWith(2));
  EXPECT_EQ(keeper.rates().seconds, guessed.seconds) << "another generation measures anew";
}

// Steps that sent nothing teach nothing about a network, and a machine that computes slower is no slower network.
TEST(CalibrationKeeperTest, AFitDepartsFromMeasuredLinks) {
  CalibrationKeeper keeper(BenchModel(), {}, RunWith(2));
  keeper.Start("cpu", RunWith(2), MeasuredLinks());
  Rates slow = keeper.rates();
  for (double& seconds : slow.seconds) seconds *= 5;
  ByteShape shape;
  shape.config = BenchModel();
  for (const int64_t prefix : {100, 300, 700, 1100, 1500, 2000, 2500}) {
    CalibrationSample sample;
    sample.work = ClusterWork(shape, testing::OneGroup(prefix, 400, 4), {.rows = prefix}, v1::S0, 1);
    sample.seconds = Seconds(sample.work, slow);
    keeper.Add(sample);
  }
  ASSERT_TRUE(keeper.rates().calibrated);
  EXPECT_GT(keeper.rates()[kLinear], 3 * slow[kLinear] / 5);
  EXPECT_NEAR(keeper.rates()[kTensorCollective] / std::exp2(-9), 1, 1e-6);
  EXPECT_NEAR(keeper.rates()[kStageByte] / std::exp2(-21), 1, 1e-6);
}

TEST(CalibrationKeeperTest, AMachineOfItsOwnHasAPageOfItsOwn) {
  CalibrationKeeper keeper(BenchModel(), {}, RunWith(2));
  keeper.Start("", RunWith(2));
  keeper.Add(Sample(1));
  keeper.TakeUnsaved();
  keeper.Start("cuda", RunWith(4));
  keeper.Add(Sample(1));
  const auto book = keeper.TakeUnsaved();
  ASSERT_TRUE(book.has_value());
  EXPECT_TRUE(book->contains(CalibrationKey(BenchModel(), RunWith(2), "cpu"))) << "no name is that of a CPU";
  EXPECT_TRUE(book->contains(CalibrationKey(BenchModel(), RunWith(4), "cuda")));
}

}  // namespace
}  // namespace stemma::server
