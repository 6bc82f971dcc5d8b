// KL estimators against fp64 autograd, the entropy's gradient, and the sums behind the metrics.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
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
using testing::ExpectEachClose;
using testing::GspoRollout;
using testing::LargestError;
using testing::Outcome;
using testing::Reference;
using testing::WithMode;

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
      SCOPED_TRACE(::testing::Message() << static_cast<int>(type) << (straight_through ? "+" : ""));
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
  LossSums a{1, 2, 3, 4, 5, 6, 7, 8};
  a += LossSums{10, 20, 30, 40, 50, 60, 70, 80};
  EXPECT_EQ(a.pg, 11);
  EXPECT_EQ(a.kl, 22);
  EXPECT_EQ(a.entropy, 33);
  EXPECT_EQ(a.clipped, 44);
  EXPECT_EQ(a.clipped_lower, 55);
  EXPECT_EQ(a.neg_log_ratio, 66);
  EXPECT_EQ(a.tokens, 77);
  EXPECT_EQ(a.plain_entropy, 88);
}

// Negative control: a dropped clamp is seen.

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
}  // namespace stemma::worker
