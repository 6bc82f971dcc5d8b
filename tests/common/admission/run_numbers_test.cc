// Numbers that the run's arithmetic cannot hold are refused by field, value and range; their neighbours are taken.
// Masked numbers are never looked at.
#include "common/admission/run_numbers.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/base/arrays.h"
#include "common/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/admission/sent_stream.h"

namespace stemma {
namespace {

using ::testing::HasSubstr;
using Header = v1::UpdateHeader;

const float kNoNumber = std::numeric_limits<float>::quiet_NaN();

struct Knob {
  std::string field;
  std::function<void(Header&, double)> set;
};

std::vector<Knob> Knobs() {
  return {
      {"adam.learning_rate", [](Header& h, double v) { h.mutable_adam()->set_learning_rate(v); }},
      {"adam.eps", [](Header& h, double v) { h.mutable_adam()->set_eps(v); }},
      {"adam.weight_decay", [](Header& h, double v) { h.mutable_adam()->set_weight_decay(v); }},
      {"adam.beta1", [](Header& h, double v) { h.mutable_adam()->set_beta1(v); }},
      {"adam.beta2", [](Header& h, double v) { h.mutable_adam()->set_beta2(v); }},
      {"adam.max_grad_norm", [](Header& h, double v) { h.mutable_adam()->set_max_grad_norm(v); }},
      {"loss.temperature", [](Header& h, double v) { h.mutable_loss()->set_temperature(v); }},
      {"loss.kl_loss_coef", [](Header& h, double v) { h.mutable_loss()->set_kl_loss_coef(v); }},
      {"loss.entropy_coeff", [](Header& h, double v) { h.mutable_loss()->set_entropy_coeff(v); }},
      {"loss.clip_ratio_low", [](Header& h, double v) { h.mutable_loss()->set_clip_ratio_low(v); }},
      {"loss.clip_ratio_high", [](Header& h, double v) { h.mutable_loss()->set_clip_ratio_high(v); }},
      {"loss.clip_ratio_c", [](Header& h, double v) { h.mutable_loss()->set_clip_ratio_c(v); }},
  };
}

// "" when the request is taken, else the problem, whose field must be this knob's.
std::string Problem(const std::string& field, double value, const std::string& run_dtype) {
  Stream stream;
  stream.numbers = NumbersOfRun(RunDtypeOf(run_dtype));
  for (const Knob& knob : Knobs()) {
    if (knob.field == field) knob.set(stream.header, value);
  }
  const absl::Status status = Build(stream).status();
  if (status.ok()) return "";
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.violations.size(), 1u) << status;
  EXPECT_EQ(details.violations[0].field, "update." + field) << status;
  return details.violations[0].description;
}

struct Bounds {
  std::string field, run_dtype;
  std::vector<double> taken, refused;
};

TEST(RunNumbersTest, WhatOverflowsOrVanishesInTheRunsDtypeIsRefusedAndItsNeighboursAreTaken) {
  const double below_one = std::nextafter(1.0f, 0.0f);
  const std::vector<Bounds> cases = {
      {"adam.learning_rate", "fp32", {0, 1e-300, 1e-6, 1}, {1.0001, 1e20, 1e300}},
      {"adam.learning_rate", "fp64", {1}, {1e20}},
      {"adam.eps", "fp32", {1.1e-19, 1e-8, 1}, {1e-50, 1e-40, 1e-20, 1e39}},
      {"adam.eps", "bf16", {1.1e-19}, {1e-50, 1e-20}},  // the masters and moments of a bf16 run are fp32
      {"adam.eps", "fp64", {1e-50, 1e39}, {1e-160}},
      {"adam.weight_decay", "fp32", {0, 0.01, 1e6}, {1.1e6, 1e300}},  // the learning rate is 1e-6
      {"adam.beta1", "fp32", {0, 0.9, below_one}, {1 - 1e-12, 1, -0.1}},
      {"adam.beta2", "bf16", {below_one}, {1 - 1e-12}},
      {"adam.beta2", "fp64", {1 - 1e-12}, {1}},
      {"adam.max_grad_norm", "fp32", {0, 1e-30, 1e30}, {1e-50, 1e39, -1}},
      {"adam.max_grad_norm", "fp64", {1e-50, 1e39}, {}},
      {"loss.temperature", "fp32", {1.1e-19, 1e30}, {1e-50, 1e-19, 1e39, 0}},
      {"loss.temperature", "fp64", {1e-50, 1e39}, {1e-160}},
      {"loss.kl_loss_coef", "fp32", {0, 1e38}, {1e39}},
      {"loss.entropy_coeff", "fp32", {-1e38, 1e38}, {-1e39, 1e39}},
      {"loss.entropy_coeff", "fp64", {-1e39, 1e39}, {}},
      {"loss.clip_ratio_low", "fp32", {0.2}, {1e39}},
      {"loss.clip_ratio_high", "fp32", {10}, {1e300}},
      {"loss.clip_ratio_c", "bf16", {3}, {1e39}},
  };
  for (const Bounds& c : cases) {
    for (const double value : c.taken) EXPECT_EQ(Problem(c.field, value, c.run_dtype), "") << c.field << " " << value;
    for (const double value : c.refused) {
      const std::string problem = Problem(c.field, value, c.run_dtype);
      EXPECT_THAT(problem, HasSubstr("must be")) << c.field << " " << value << " " << c.run_dtype;
      EXPECT_LE(problem.size(), 160u) << "cut on its way: " << problem;
    }
  }
}

TEST(RunNumbersTest, ProblemsQuoteTheValueAndTheAllowedRange) {
  EXPECT_THAT(Problem("adam.eps", 1e-50, "bf16"), HasSubstr("is 1e-50, must be in [1.0842e-19, 3.40282e+38]"));
  EXPECT_THAT(Problem("adam.learning_rate", 1e20, "fp32"), HasSubstr("is 1e+20, must be in [0, 1]"));
  EXPECT_THAT(Problem("adam.weight_decay", 1e300, "fp32"), HasSubstr("is 1e+300, must be in"));
  EXPECT_THAT(Problem("adam.weight_decay", 2e6, "fp32"), HasSubstr("is 2e+06, must be at most 1e+06 with"));
  EXPECT_THAT(Problem("adam.eps", std::nan(""), "fp32"), HasSubstr("is nan, must be finite"));
}

TEST(RunNumbersTest, AdvantagesAndRewardsOfARolloutAreHeldToTheSameRange) {
  for (const char* dtype : {"fp32", "bf16", "fp64"}) {
    for (const bool reward : {false, true}) {
      Stream stream;
      stream.numbers = NumbersOfRun(RunDtypeOf(dtype));
      if (reward) {
        stream.header.mutable_loss()->set_normalize_advantage_std(true);
        stream.rollout().clear_advantage();
        stream.rollout().set_reward(1e39);
      } else {
        stream.rollout().set_advantage(1e39);
      }
      const absl::Status status = Build(stream).status();
      EXPECT_EQ(status.ok(), std::string(dtype) == "fp64") << status;
      if (status.ok()) continue;
      EXPECT_EQ(GetErrorDetails(status).violations[0].field,
                std::string("groups[1].rollouts[1].") + (reward ? "reward" : "advantage"));
    }
  }
}

TEST(RunNumbersTest, AClippedNormWhoseSquareOverflowsIsFound) {
  const RunNumbers fp32 = NumbersOfRun(RunDtype::kFp32), fp64 = NumbersOfRun(RunDtype::kFp64);
  EXPECT_EQ(CheckClippedNorm(1e19, 1, fp32), "");
  EXPECT_THAT(CheckClippedNorm(1e20, 1, fp32), HasSubstr("its norm is 1e+20, and squares above 1.84467e+19 overflow"));
  EXPECT_EQ(CheckClippedNorm(1e30, 1e-30, fp32), "");
  EXPECT_THAT(CheckClippedNorm(1e30, 1e-5, fp32), HasSubstr("clipped to 1e+25"));
  EXPECT_EQ(CheckClippedNorm(1e30, 1, fp64), "");
  EXPECT_NE(CheckClippedNorm(1e160, 1, fp64), "");
  // The bound itself: its square is the largest finite float.
  const float bound = static_cast<float>(std::sqrt(fp32.largest));
  EXPECT_TRUE(std::isfinite(bound * bound));
}

// --------------------------------------------------------------------------------------------------------------- masks

struct TokenArrayField {
  std::string name;
  std::function<void(v1::Rollout&, const std::string&)> set;
  std::string loss_mode = "vanilla";
};

std::vector<TokenArrayField> TokenArrays() {
  return {
      {"old_log_probs", [](v1::Rollout& r, const std::string& bytes) { r.set_old_log_probs(bytes); }},
      {"ref_log_prob", [](v1::Rollout& r, const std::string& bytes) { r.set_ref_log_prob(bytes); }},
      {"rollout_log_probs", [](v1::Rollout& r, const std::string& bytes) { r.set_rollout_log_probs(bytes); }},
      {"token_advantages", [](v1::Rollout& r, const std::string& bytes) { r.set_token_advantages(bytes); }},
      {"rollout_is_weights", [](v1::Rollout& r, const std::string& bytes) { r.set_rollout_is_weights(bytes); }},
      {"loss_weights", [](v1::Rollout& r, const std::string& bytes) { r.set_loss_weights(bytes); }, "cross_entropy"},
  };
}

// The masked token of GoodRollout is its third.
Stream WithNumbers(const TokenArrayField& array, const std::vector<float>& numbers) {
  Stream stream;
  if (array.name == "rollout_log_probs") stream.header.mutable_old()->set_from(v1::LogProbSource::ROLLOUT);
  if (array.loss_mode == "cross_entropy") {
    v1::LossConfig& loss = *stream.header.mutable_loss();
    loss.set_loss_mode(array.loss_mode);
    loss.clear_clip_ratio_low();
    loss.clear_clip_ratio_high();
    loss.clear_clip_ratio_c();
    stream.header.clear_old();
  }
  for (v1::PromptGroup& group : stream.groups) {
    for (v1::Rollout& rollout : *group.mutable_rollouts()) {
      if (array.name == "rollout_log_probs") rollout.clear_old_log_probs();
      if (array.loss_mode == "cross_entropy") {
        rollout.clear_advantages();
        rollout.clear_old_log_probs();
      }
      array.set(rollout, PackArray<float>({1, 2, 3}));
    }
  }
  array.set(stream.rollout(), PackArray(numbers));
  return stream;
}

TEST(MaskedNumbersTest, AMaskedNumberIsTakenWhateverItIsAndAnUnmaskedOneIsNot) {
  for (const TokenArrayField& array : TokenArrays()) {
    for (const float bad :
         {kNoNumber, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      EXPECT_TRUE(Build(WithNumbers(array, {1, 2, bad})).ok()) << array.name << " " << bad;
      const absl::Status status = Build(WithNumbers(array, {1, bad, bad})).status();
      ASSERT_FALSE(status.ok()) << array.name;
      const ErrorDetails details = GetErrorDetails(status);
      ASSERT_EQ(details.violations.size(), 1u) << status;
      EXPECT_EQ(details.violations[0].field, "groups[1].rollouts[1]." + array.name + "[1]");
    }
    EXPECT_FALSE(Build(WithNumbers(array, {1, 2})).ok()) << "masked numbers must be there: " << array.name;
  }
}

TEST(MaskedNumbersTest, UnderAMaskOfTheWrongLengthEveryNumberIsLookedAt) {
  Stream stream = WithNumbers(TokenArrays()[0], {-1, -2, kNoNumber});
  stream.rollout().set_response_mask("ab");
  const ErrorDetails details = GetErrorDetails(Build(stream).status());
  ASSERT_EQ(details.violations.size(), 2u);
  EXPECT_EQ(details.violations[0].field, "groups[1].rollouts[1].response_mask");
  EXPECT_EQ(details.violations[1].field, "groups[1].rollouts[1].old_log_probs[2]");
}

// ------------------------------------------------------------------------------------------------------- names of
// losses

TEST(UnknownNamesTest, AnUnknownNameIsQuotedAndTheAllowedOnesAreListed) {
  Stream stream;
  stream.header.mutable_loss()->set_loss_agg_mode("mean");
  EXPECT_THAT(std::string(Build(stream).status().message()),
              HasSubstr("update.loss.loss_agg_mode is \"mean\", must be one of: token-mean, token-sum, "));
  EXPECT_THAT(std::string(Build(stream).status().message()), HasSubstr(", prompt-mean"));
}

}  // namespace
}  // namespace stemma
