// Every policy loss against fp64 autograd of its plain formula, in every region of its clamps and on their bounds. The
// formulas here are made of clamp, exp, maximum and where: no case analysis is shared with the product.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/loss/loss_cases.h"

namespace stemma::worker {
namespace {

using testing::AllRegions;
using testing::AsTensor;
using testing::Autograd;
using testing::Case;
using testing::Evaluate;
using testing::Exp;
using testing::ExpectEachClose;
using testing::Formula;
using testing::GspoRollout;
using testing::kTolerance;
using testing::LargestError;
using testing::Outcome;
using testing::Reference;
using testing::WithMode;

at::Tensor Ratio(const Case& c, const at::Tensor& log_prob) {
  return at::exp(at::clamp(log_prob - AsTensor(c.old_log_prob), -20.0, 20.0));
}

at::Tensor Clip(const LossOptions& options, const at::Tensor& ratio) {
  return at::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
}

at::Tensor Surrogate(const LossOptions& options, const Case& c, const at::Tensor& ratio) {
  const at::Tensor advantage = AsTensor(c.advantage);
  return at::maximum(-advantage * ratio, -advantage * Clip(options, ratio));
}

at::Tensor DualClip(const LossOptions& options, const Case& c, const at::Tensor& loss) {
  const at::Tensor advantage = AsTensor(c.advantage);
  return at::where(advantage < 0, at::minimum(loss, -advantage * *options.clip_c), loss);
}

// gspo's ratio on every token. kOwnToken: its gradient passes through the token's own log-prob; else the true
// derivative.
enum class GspoGradient { kOwnToken, kTrue };
at::Tensor SequenceRatio(const Case& c, const at::Tensor& log_prob, GspoGradient gradient) {
  const at::Tensor mask = c.mask_tensor();
  const at::Tensor mean = ((log_prob - AsTensor(c.old_log_prob)) * mask).sum() / at::clamp(mask.sum(), 1.0);
  const at::Tensor zeros = at::zeros_like(log_prob);
  const at::Tensor each = gradient == GspoGradient::kTrue ? mean + zeros : log_prob - log_prob.detach() + mean.detach();
  return at::exp(at::clamp(each, std::nullopt, 10.0));
}

Formula PolicyFormula(const LossOptions& options, const Case& c) {
  return [&](const at::Tensor& log_prob) -> at::Tensor {
    const at::Tensor advantage = AsTensor(c.advantage);
    switch (options.mode) {
      case LossMode::kVanilla: {
        const at::Tensor loss = Surrogate(options, c, Ratio(c, log_prob));
        return options.clip_c.has_value() ? DualClip(options, c, loss) : loss;
      }
      case LossMode::kGspo:
        return Surrogate(options, c, SequenceRatio(c, log_prob, GspoGradient::kOwnToken));
      case LossMode::kCispo:
        return -Clip(options, Ratio(c, log_prob)).detach() * advantage * log_prob;
      case LossMode::kImportanceSampling:
        return -Ratio(c, log_prob) * advantage;
      case LossMode::kCrossEntropy:
        return -AsTensor(c.loss_weight) * log_prob;
      case LossMode::kGpg:
        return -log_prob * advantage;
    }
    return {};
  };
}

void ExpectPolicyLossIsAutograds(const LossOptions& options, Case c) {
  c.SetLogProb(-1.25);  // exact: the values of cispo, cross_entropy and gpg need lp != 0
  if (options.mode == LossMode::kCrossEntropy) c.importance.clear();
  const at::Tensor factor = c.importance.empty() ? at::zeros_like(AsTensor(c.weight)) + 1 : AsTensor(c.importance);
  const Reference expected = Autograd(c, factor, PolicyFormula(options, c));
  const Outcome actual = Evaluate(options, c);
  ExpectEachClose(actual.dlog_prob, expected.gradient, c);
  EXPECT_NEAR(actual.sums.pg, expected.value, kTolerance * std::max(1.0, std::abs(expected.value)));
}

TEST(PolicyLossTest, EveryModeIsAutogradsInEveryRegion) {
  for (const LossMode mode : {LossMode::kVanilla, LossMode::kGspo, LossMode::kCispo, LossMode::kImportanceSampling,
                              LossMode::kCrossEntropy, LossMode::kGpg}) {
    SCOPED_TRACE(static_cast<int>(mode));
    const LossOptions options = WithMode(mode);
    ExpectPolicyLossIsAutograds(options, AllRegions(options));
  }
}

TEST(PolicyLossTest, DualClipIsAutogradsInEveryRegionAlsoBelowTheUpperClip) {
  for (const double c : {3.0, 1.1}) {  // 1.1 < 1 + 0.28
    LossOptions options = WithMode(LossMode::kVanilla);
    options.clip_c = c;
    ExpectPolicyLossIsAutograds(options, AllRegions(options));
  }
}

TEST(PolicyLossTest, OnAClipBoundTheGradientIsKept) {
  // 1 + U and 1 - L are exp(d) to the last bit: in [1/2, 2] their difference to 1 is exact.
  const double d_up = 0.25, d_down = -0.25;
  for (const LossMode mode : {LossMode::kVanilla, LossMode::kGspo, LossMode::kCispo}) {
    LossOptions options = WithMode(mode);
    options.clip_high = Exp(d_up) - 1;
    options.clip_low = 1 - Exp(d_down);
    for (const double d : {d_up, d_down}) {
      for (const double adv : {1.5, -0.7}) {
        Case c;
        c.Add(d, 0, adv);
        ExpectPolicyLossIsAutograds(options, c);
        const Outcome outcome = Evaluate(options, c);
        EXPECT_EQ(outcome.dlog_prob[0], -adv * Exp(d) * c.weight[0] * c.importance[0]);
        EXPECT_EQ(outcome.sums.clipped, 0);
      }
    }
  }
}

TEST(PolicyLossTest, OnTheBoundOfTheLogRatioTheGradientIsKept) {
  LossOptions options = WithMode(LossMode::kImportanceSampling);
  Case c;
  for (const double d : {20.0, -20.0, std::nextafter(20.0, 21.0), std::nextafter(-20.0, -21.0)}) c.Add(d, 0, 1);
  ExpectPolicyLossIsAutograds(options, c);
  const Outcome outcome = Evaluate(options, c);
  EXPECT_LT(outcome.dlog_prob[0], 0);
  EXPECT_LT(outcome.dlog_prob[1], 0);
  EXPECT_EQ(outcome.dlog_prob[2], 0);
  EXPECT_EQ(outcome.dlog_prob[3], 0);
}

// On r = c autograd's minimum halves the gradient between its arms; the public formula keeps all of it.
TEST(PolicyLossTest, OnTheDualClipBoundTheGradientIsKept) {
  LossOptions options = WithMode(LossMode::kVanilla);
  options.clip_c = Exp(1.0);
  Case c;
  c.Add(1.0, 0, -1);
  const Outcome outcome = Evaluate(options, c);
  EXPECT_EQ(outcome.dlog_prob[0], Exp(1.0) * c.weight[0] * c.importance[0]);
  EXPECT_EQ(outcome.sums.clipped_lower, 0);
}

TEST(PolicyLossTest, GspoIsTheTrueDerivativeOfTheSequenceRatioWhenItsTokensShareAdvantageAndWeight) {
  for (const double mean : {0.0, 0.15, 0.4, -0.15, -0.4, 3.0, 9.9, 10.1, 25.0}) {
    for (const double adv : {1.0, -1.0}) {
      const Case c = GspoRollout(mean, adv);
      const LossOptions options = WithMode(LossMode::kGspo);
      const Reference expected = Autograd(c, at::zeros_like(AsTensor(c.weight)) + 1, [&](const at::Tensor& log_prob) {
        return Surrogate(options, c, SequenceRatio(c, log_prob, GspoGradient::kTrue));
      });
      const Outcome actual = Evaluate(options, c);
      ExpectEachClose(actual.dlog_prob, expected.gradient, c);
      EXPECT_NEAR(actual.sums.pg, expected.value, kTolerance * std::max(1.0, std::abs(expected.value)));
    }
  }
}

TEST(PolicyLossTest, OnPolicyTheRatioIsOneAndTheGradientIsThatOfGpg) {
  for (const LossMode mode : {LossMode::kVanilla, LossMode::kGspo, LossMode::kCispo, LossMode::kImportanceSampling}) {
    LossOptions options = WithMode(mode);
    Case c = AllRegions(options);
    c.old_log_prob = c.log_prob;
    const Outcome actual = Evaluate(options, c), gpg = Evaluate(WithMode(LossMode::kGpg), c);
    EXPECT_EQ(actual.dlog_prob, gpg.dlog_prob);
    EXPECT_EQ(actual.sums.clipped, 0);
    EXPECT_EQ(actual.sums.neg_log_ratio, 0);
  }
}

TEST(PolicyLossTest, AMaskedTokenIsNotReadWhateverItsNumbersAre) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  LossOptions options = WithMode(LossMode::kGspo);
  options.kl_type = KlType::kK3;
  options.kl_coef = 1;
  options.entropy_coeff = 1;
  Case c = GspoRollout(0.1, 1);
  const Outcome plain = Evaluate(options, c);
  c.log_prob[3] = c.old_log_prob[3] = c.ref_log_prob[3] = c.advantage[3] = c.entropy[3] = nan;
  const Outcome outcome = Evaluate(options, c);
  EXPECT_EQ(outcome.dlog_prob, plain.dlog_prob);
  EXPECT_EQ(outcome.dlog_prob[3], 0);
  EXPECT_EQ(outcome.dentropy[3], 0);
  EXPECT_EQ(outcome.sums.pg, plain.sums.pg);
  EXPECT_EQ(outcome.sums.kl, plain.sums.kl);
}

TEST(PolicyLossTest, TheEntropyOfUnmaskedTokensIsSummedWithoutWeightsToo) {
  const Case c = GspoRollout(0.1, 1);
  double sum = 0;
  for (size_t i = 0; i < c.mask.size(); ++i) sum += c.mask[i] != 0 ? c.entropy[i] : 0;
  EXPECT_DOUBLE_EQ(Evaluate(WithMode(LossMode::kGspo), c).sums.plain_entropy, sum);
  EXPECT_NE(sum, 0);
}

TEST(PolicyLossTest, ANanLogProbGivesANanGradient) {
  for (const LossMode mode : {LossMode::kVanilla, LossMode::kGspo, LossMode::kCispo, LossMode::kImportanceSampling}) {
    LossOptions options = WithMode(mode);
    options.clip_c = 3;
    Case c;
    c.Add(0.1, 0, -1);
    c.log_prob[0] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(Evaluate(options, c).dlog_prob[0])) << static_cast<int>(mode);
  }
}

// Two rollouts in one call: each has its own ratio.
TEST(PolicyLossTest, GspoOfSeveralRolloutsIsThatOfEachAlone) {
  const LossOptions options = WithMode(LossMode::kGspo);
  const Case first = GspoRollout(0.15, 1), second = GspoRollout(-0.4, -1);
  Case both = first;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(both.log_prob, second.log_prob);
  append(both.old_log_prob, second.old_log_prob);
  append(both.ref_log_prob, second.ref_log_prob);
  append(both.advantage, second.advantage);
  append(both.loss_weight, second.loss_weight);
  append(both.weight, second.weight);
  append(both.entropy, second.entropy);
  append(both.mask, second.mask);
  LossRows rows = both.rows();
  rows.rollout_T = at::tensor({5, 5, 5, 5, 6, 6, 6, 6}, at::kLong);
  std::vector<double> expected = Evaluate(options, first).dlog_prob;
  append(expected, Evaluate(options, second).dlog_prob);
  EXPECT_LE(LargestError(Evaluate(options, rows, both).dlog_prob, expected), kTolerance);
  rows.rollout_T = at::zeros_like(rows.rollout_T);  // control: as one rollout
  EXPECT_GT(LargestError(Evaluate(options, rows, both).dlog_prob, expected), 0.1);
}

// Negative controls: what is dropped is seen.

TEST(NegativeControlTest, ADroppedDualClipIsSeen) {
  LossOptions options = WithMode(LossMode::kVanilla);
  options.clip_c = 3;
  Case c = AllRegions(options);
  c.SetLogProb(-1.25);
  const Reference expected = Autograd(c, AsTensor(c.importance), PolicyFormula(options, c));
  EXPECT_LE(LargestError(Evaluate(options, c).dlog_prob, expected.gradient), kTolerance);
  options.clip_c.reset();
  EXPECT_GT(LargestError(Evaluate(options, c).dlog_prob, expected.gradient), 0.1);
}

TEST(NegativeControlTest, ADroppedClampOfTheLogRatioIsSeen) {
  const LossOptions options = WithMode(LossMode::kImportanceSampling);
  Case c = AllRegions(options);
  const Reference unclamped = Autograd(c, AsTensor(c.importance), [&](const at::Tensor& log_prob) {
    return -at::exp(log_prob - AsTensor(c.old_log_prob)) * AsTensor(c.advantage);
  });
  EXPECT_GT(LargestError(Evaluate(options, c).dlog_prob, unclamped.gradient), 0.1);
}

TEST(NegativeControlTest, ADroppedClipIsSeen) {
  for (const LossMode mode : {LossMode::kVanilla, LossMode::kGspo, LossMode::kCispo}) {
    const LossOptions options = WithMode(mode);
    LossOptions open = options;
    open.clip_low = 1;
    open.clip_high = 1e30;
    const Case c = GspoRollout(1.0, 1);
    EXPECT_GT(LargestError(Evaluate(open, c).dlog_prob, Evaluate(options, c).dlog_prob), 0.1) << static_cast<int>(mode);
  }
}

}  // namespace
}  // namespace stemma::worker
