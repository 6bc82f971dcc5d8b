#include "client/cli/commands/lr_schedule.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

using ::testing::HasSubstr;

TEST(LrScheduleTest, ConstantIsOneAfterTheWarmUp) {
  const LrSchedule schedule = {.warmup_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.Factor(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.Factor(3), 1);
  EXPECT_DOUBLE_EQ(schedule.Factor(1000), 1);
}

TEST(LrScheduleTest, LinearFallsToTheRatioAndStays) {
  const LrSchedule schedule = {.curve = LrCurve::kLinear, .warmup_steps = 2, .total_steps = 12, .min_lr_ratio = 0.1};
  EXPECT_DOUBLE_EQ(schedule.Factor(2), 1);
  EXPECT_DOUBLE_EQ(schedule.Factor(7), 0.55);
  EXPECT_DOUBLE_EQ(schedule.Factor(12), 0.1);
  EXPECT_DOUBLE_EQ(schedule.Factor(99), 0.1);
}

TEST(LrScheduleTest, CosineIsHalfWayInTheMiddle) {
  const LrSchedule schedule = {.curve = LrCurve::kCosine, .total_steps = 100};
  EXPECT_DOUBLE_EQ(schedule.Factor(0), 1);
  EXPECT_NEAR(schedule.Factor(50), 0.5, 1e-15);  // one rounding of cos(pi / 2)
  EXPECT_NEAR(schedule.Factor(100), 0.0, 1e-15);
}

TEST(LrScheduleTest, ACurveWithoutAnEndIsRefused) {
  EXPECT_TRUE(LrSchedule().Validate().ok());
  EXPECT_FALSE((LrSchedule{.curve = LrCurve::kCosine}).Validate().ok());
  EXPECT_FALSE((LrSchedule{.curve = LrCurve::kLinear, .warmup_steps = 10, .total_steps = 10}).Validate().ok());
  EXPECT_FALSE((LrSchedule{.warmup_steps = -1}).Validate().ok());
  EXPECT_FALSE((LrSchedule{.min_lr_ratio = 1.5}).Validate().ok());
}

TEST(LrScheduleTest, WhatTheConstantCurveDoesNotReadIsRefused) {
  const auto refusal = [](const LrSchedule& schedule) { return std::string(schedule.Validate().message()); };
  EXPECT_THAT(refusal({.total_steps = 20}), HasSubstr("--total-steps 20 says how a curve ends"));
  EXPECT_THAT(refusal({.min_lr_ratio = 0.5}), HasSubstr("--min-lr-ratio 0.5 says how a curve ends"));
  EXPECT_TRUE((LrSchedule{.warmup_steps = 20}).Validate().ok());
  EXPECT_TRUE((LrSchedule{.curve = LrCurve::kLinear, .total_steps = 20, .min_lr_ratio = 0.5}).Validate().ok());
}

}  // namespace
}  // namespace stemma::cli
