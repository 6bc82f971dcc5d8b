#include "server/protocol/calibration_keeper.h"

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
