// Every loss and KL estimator against fp64 autograd of its plain formula, in every region of its clamps and on their
// bounds. The formulas here are made of clamp, exp, maximum and where: no case analysis is shared with the product.
#include "worker/ops/policy_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

using ::testing::HasSubstr;

// Both sides evaluate a handful of fp64 operations per token: 1e-14 of the largest value is some tens of roundings.
constexpr double kTolerance = 1e-14;

at::Tensor AsTensor(const std::vector<double>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<double>());
  return tensor;
}

std::vector<double> AsVector(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  return {dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel()};
}

// Tokens at chosen distances d = lp - old and x = ref - lp.
struct Case {
  std::vector<double> log_prob, old_log_prob, ref_log_prob, advantage, importance, loss_weight, weight, entropy;
  std::vector<uint8_t> mask;

  void Add(double d, double x, double adv, uint8_t unmasked = 1) {
    const double index = static_cast<double>(log_prob.size());
    log_prob.push_back(0);  // so that d and x are exact
    old_log_prob.push_back(-d);
    ref_log_prob.push_back(x);
    advantage.push_back(adv);
    importance.push_back(0.5 + 0.25 * std::fmod(index, 4));
    loss_weight.push_back(adv - 0.3);
    weight.push_back(unmasked ? 0.125 * (1 + std::fmod(index, 3)) : 0);
    entropy.push_back(1 + 0.1 * index);
    mask.push_back(unmasked);
  }
  void SetLogProb(double value) {
    for (size_t i = 0; i < log_prob.size(); ++i) {
      log_prob[i] += value;
      old_log_prob[i] += value;
      ref_log_prob[i] += value;
    }
  }
  LossTokens tokens() const {
    return {.old_log_prob = old_log_prob,
            .ref_log_prob = ref_log_prob,
            .advantage = advantage,
            .importance_weight = importance,
            .loss_weight = loss_weight,
            .weight = weight,
            .mask = mask};
  }
  at::Tensor mask_tensor() const { return AsTensor({mask.begin(), mask.end()}); }
};

// d on both sides of, and on, every bound that the modes have; advantages of both signs and 0.
Case AllRegions(const LossOptions& options) {
  const double up = std::log1p(options.clip_high), down = std::log1p(-options.clip_low);
  const double c = std::log(options.clip_c.value_or(3.0));
  Case result;
  for (const double adv : {1.5, -0.7, 0.0}) {
    for (const double d : {0.0, 0.1, -0.1, up - 0.01, up + 0.01, down + 0.01, down - 0.01, c - 0.01, c + 0.01, 5.0,
                           -5.0, 19.9, 20.0, 20.1, -19.9, -20.0, -20.1, 30.0, -30.0}) {
      result.Add(d, 0.7 * d - 0.05, adv);
    }
    result.Add(0.4, 0.3, adv, /*unmasked=*/0);
  }
  return result;
}

struct Outcome {
  std::vector<double> dlog_prob, dentropy;
  LossSums sums;
};

Outcome Evaluate(const LossOptions& options, const Case& c) {
  const size_t rows = c.log_prob.size();
  Outcome result{std::vector<double>(rows, 7), std::vector<double>(rows, 7), {}};
  LossGradient(options, c.tokens(), c.log_prob, c.entropy, result.dlog_prob, result.dentropy, result.sums);
  return result;
}

// A plain formula: [R] loss of [R] log-probs.
using Formula = std::function<at::Tensor(const at::Tensor& log_prob)>;

struct Reference {
  double value = 0;
  std::vector<double> gradient;
};

Reference Autograd(const Case& c, const at::Tensor& factor, const Formula& formula) {
  at::Tensor log_prob = AsTensor(c.log_prob).set_requires_grad(true);
  const at::Tensor loss = (formula(log_prob) * AsTensor(c.weight) * factor * c.mask_tensor()).sum();
  if (!loss.requires_grad()) return {loss.item<double>(), std::vector<double>(c.log_prob.size(), 0)};
  loss.backward();
  return {loss.item<double>(), AsVector(log_prob.grad())};
}

double LargestError(const std::vector<double>& actual, const std::vector<double>& expected) {
  double largest = 1e-300, error = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::isfinite(actual[i]) ? std::abs(actual[i] - expected[i]) : INFINITY);
  }
  return error / largest;
}

// By token: gradients of exp(20) and of 1 stand side by side.
void ExpectEachClose(const std::vector<double>& actual, const std::vector<double>& expected, const Case& c) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LE(std::abs(actual[i] - expected[i]), kTolerance * std::max(1.0, std::abs(expected[i])))
        << "token " << i << " d " << c.log_prob[i] - c.old_log_prob[i] << " x " << c.ref_log_prob[i] - c.log_prob[i]
        << " advantage " << c.advantage[i] << ": " << actual[i] << " and " << expected[i];
  }
}

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

LossOptions WithMode(LossMode mode) { return {.mode = mode, .clip_low = 0.2, .clip_high = 0.28}; }

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
    options.clip_high = std::exp(d_up) - 1;
    options.clip_low = 1 - std::exp(d_down);
    for (const double d : {d_up, d_down}) {
      for (const double adv : {1.5, -0.7}) {
        Case c;
        c.Add(d, 0, adv);
        ExpectPolicyLossIsAutograds(options, c);
        const Outcome outcome = Evaluate(options, c);
        EXPECT_EQ(outcome.dlog_prob[0], -adv * std::exp(d) * c.weight[0] * c.importance[0]);
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
  options.clip_c = std::exp(1.0);
  Case c;
  c.Add(1.0, 0, -1);
  const Outcome outcome = Evaluate(options, c);
  EXPECT_EQ(outcome.dlog_prob[0], std::exp(1.0) * c.weight[0] * c.importance[0]);
  EXPECT_EQ(outcome.sums.clipped_lower, 0);
}

Case GspoRollout(double mean, double adv) {
  Case c;
  for (const double offset : {0.3, -0.5, 0.2}) c.Add(mean + offset, 0, adv);
  c.Add(9, 0, adv, /*unmasked=*/0);
  c.weight = {0.25, 0.25, 0.25, 0};
  c.importance.clear();
  return c;
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

// --------------------------------------------------------------------------------------------------------- KL, entropy

at::Tensor KlValue(KlType type, const at::Tensor& x) {
  switch (type) {
    case KlType::kK1:
      return -x;
    case KlType::kAbs:
      return at::abs(x);
    case KlType::kK2:
      return x * x / 2;
    case KlType::kK3: {
      const at::Tensor y = at::clamp(x, -20.0, 20.0);
      return at::clamp(at::exp(y) - y - 1, std::nullopt, 10.0);
    }
    case KlType::kNone:
      break;
  }
  return at::zeros_like(x);
}

Case KlRegions() {
  Case c;
  for (const double x : {0.0, 0.5, -0.5, 2.6, 2.62, -10.9, -11.1, 20.0, -20.0, 20.5, -20.5, 40.0, -40.0})
    c.Add(0, x, 1);
  c.Add(0, 1, 1, /*unmasked=*/0);
  return c;
}

LossOptions KlOnly(KlType type, bool straight_through) {
  return {.mode = LossMode::kCrossEntropy, .kl_coef = 0.4, .kl_type = type, .kl_straight_through = straight_through};
}

TEST(KlTest, EveryEstimatorIsAutogradsInEveryRegion) {
  for (const KlType type : {KlType::kK1, KlType::kAbs, KlType::kK2, KlType::kK3}) {
    for (const bool straight_through : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(type) << (straight_through ? "+" : ""));
      Case c = KlRegions();
      c.loss_weight.assign(c.log_prob.size(), 0);
      const Reference expected = Autograd(c, at::zeros_like(AsTensor(c.weight)) + 1, [&](const at::Tensor& log_prob) {
        const at::Tensor x = AsTensor(c.ref_log_prob) - log_prob;
        if (!straight_through) return KlValue(type, x);
        return KlValue(type, x).detach() + x * x / 2 - (x * x / 2).detach();
      });
      const Outcome actual = Evaluate(KlOnly(type, straight_through), c);
      std::vector<double> scaled = expected.gradient;
      for (double& value : scaled) value *= 0.4;
      ExpectEachClose(actual.dlog_prob, scaled, c);
      EXPECT_NEAR(actual.sums.kl, expected.value, 1e-13 * std::abs(expected.value));  // a sum with values of 800 in it
      EXPECT_EQ(actual.sums.pg, 0);
    }
  }
}

TEST(KlTest, ImportanceWeightsAreNoFactorOfKlAndEntropy) {
  LossOptions options = KlOnly(KlType::kK2, false);
  options.mode = LossMode::kGpg;
  options.entropy_coeff = 0.01;
  Case c = KlRegions();
  c.advantage.assign(c.log_prob.size(), 0);
  const Outcome weighted = Evaluate(options, c);
  c.importance.clear();
  const Outcome plain = Evaluate(options, c);
  EXPECT_EQ(weighted.dlog_prob, plain.dlog_prob);
  EXPECT_EQ(weighted.sums.kl, plain.sums.kl);
  EXPECT_EQ(weighted.sums.entropy, plain.sums.entropy);
}

TEST(EntropyTest, ItsGradientIsTheWeightTimesMinusTheCoefficient) {
  LossOptions options = WithMode(LossMode::kGpg);
  options.entropy_coeff = 0.01;
  const Case c = AllRegions(options);
  const Outcome outcome = Evaluate(options, c);
  double entropy = 0;
  for (size_t i = 0; i < c.weight.size(); ++i) {
    EXPECT_EQ(outcome.dentropy[i], -0.01 * c.weight[i]);
    entropy += c.weight[i] * c.entropy[i];
  }
  EXPECT_NEAR(outcome.sums.entropy, entropy, 1e-13 * entropy);  // two orders of a sum of 60 terms
}

// ------------------------------------------------------------------------------------------------- metrics and the
// rest

TEST(LossSumsTest, CountsTheClipsThatAreActive) {
  LossOptions options = WithMode(LossMode::kVanilla);
  options.clip_c = 3.0;
  Case c;
  c.Add(0.5, 0, 1);     // above, active
  c.Add(0.5, 0, -1);    // above, the other arm
  c.Add(-0.5, 0, -1);   // below, active
  c.Add(-0.5, 0, 1);    // below, the other arm
  c.Add(2, 0, -1);      // beyond c
  c.Add(2, 0, 1);       // above, active
  c.Add(0.1, 0, 1);     // inside
  c.Add(0.5, 0, 0);     // no advantage
  c.Add(0.5, 0, 1, 0);  // masked
  const LossSums sums = Evaluate(options, c).sums;
  EXPECT_EQ(sums.clipped, 3);
  EXPECT_EQ(sums.clipped_lower, 1);
  EXPECT_EQ(sums.tokens, 8);
  EXPECT_NEAR(sums.neg_log_ratio, -(0.5 + 0.5 - 0.5 - 0.5 + 2 + 2 + 0.1 + 0.5), 1e-14);  // eight roundings
  options.mode = LossMode::kCispo;
  options.clip_c.reset();
  EXPECT_EQ(Evaluate(options, c).sums.clipped, 7);  // every r != clip(r), 0.1 is inside
  EXPECT_EQ(Evaluate(WithMode(LossMode::kGpg), c).sums.clipped, 0);
  EXPECT_EQ(Evaluate(WithMode(LossMode::kGspo), GspoRollout(0.4, 1)).sums.clipped, 3);
  EXPECT_EQ(Evaluate(WithMode(LossMode::kGspo), GspoRollout(0.4, -1)).sums.clipped, 0);
  // Three tokens at 25 + 0.3, - 0.5, + 0.2: gspo does not clamp d.
  EXPECT_NEAR(Evaluate(WithMode(LossMode::kGspo), GspoRollout(25, 1)).sums.neg_log_ratio, -75,
              1e-13);  // three roundings
  EXPECT_EQ(Evaluate(WithMode(LossMode::kVanilla), GspoRollout(25, 1)).sums.neg_log_ratio, -60);
}

TEST(LossSumsTest, AddsEveryField) {
  LossSums a{1, 2, 3, 4, 5, 6, 7};
  a += LossSums{10, 20, 30, 40, 50, 60, 70};
  EXPECT_EQ(a.pg, 11);
  EXPECT_EQ(a.kl, 22);
  EXPECT_EQ(a.entropy, 33);
  EXPECT_EQ(a.clipped, 44);
  EXPECT_EQ(a.clipped_lower, 55);
  EXPECT_EQ(a.neg_log_ratio, 66);
  EXPECT_EQ(a.tokens, 77);
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

// ---------------------------------------------------------------------------------------------------- negative
// controls

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

TEST(NegativeControlTest, ADroppedClampOfLowVarKlIsSeen) {
  Case c = KlRegions();
  c.loss_weight.assign(c.log_prob.size(), 0);
  const Reference unclamped = Autograd(c, at::zeros_like(AsTensor(c.weight)) + 0.4, [&](const at::Tensor& log_prob) {
    const at::Tensor x = AsTensor(c.ref_log_prob) - log_prob;
    return at::exp(x) - x - 1;
  });
  EXPECT_GT(LargestError(Evaluate(KlOnly(KlType::kK3, false), c).dlog_prob, unclamped.gradient), 0.1);
  EXPECT_GT(LargestError(Evaluate(KlOnly(KlType::kK3, true), c).dlog_prob, unclamped.gradient), 0.1);
}

}  // namespace
}  // namespace stemma
