// Tokens at chosen distances from every bound of the losses, and autograd of plain formulas on them: the oracle of the
// loss tests.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/backends.h"
#include "tests/testing/namespaces.h"
#include "worker/loss/wave_loss.h"

namespace stemma::testing {

// Both sides evaluate a handful of fp64 operations per token: 1e-14 of the largest value is some tens of roundings.
inline constexpr double kTolerance = 1e-14;

inline at::Tensor AsTensor(const std::vector<double>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<double>());
  return tensor;
}

inline std::vector<double> AsVector(const at::Tensor& tensor) {
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
  LossRows rows() const {
    const auto or_none = [](const std::vector<double>& values) {
      return values.empty() ? at::Tensor() : AsTensor(values);
    };
    return {.old_log_prob_T = or_none(old_log_prob),
            .ref_log_prob_T = or_none(ref_log_prob),
            .advantage_T = or_none(advantage),
            .importance_weight_T = or_none(importance),
            .loss_weight_T = or_none(loss_weight),
            .weight_T = AsTensor(weight),
            .mask_T = mask_tensor(),
            .rollout_T = at::zeros({static_cast<int64_t>(mask.size())}, at::kLong)};
  }
  at::Tensor mask_tensor() const { return AsTensor({mask.begin(), mask.end()}); }
};

// d on both sides of, and on, every bound that the modes have; advantages of both signs and 0.
inline Case AllRegions(const LossOptions& options) {
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

inline Outcome Evaluate(const LossOptions& options, const LossRows& rows, const Case& c) {
  const at::Tensor log_prob = AsTensor(c.log_prob), entropy = AsTensor(c.entropy);
  const at::Tensor dlog_prob = at::full_like(log_prob, 7), dentropy = at::full_like(log_prob, 7);
  const at::Tensor sums = at::zeros({kNumLossSums}, at::kDouble);
  TestBackend().kernels.loss({.options = options,
                              .rows = rows,
                              .log_prob_T = log_prob,
                              .entropy_T = entropy,
                              .dlog_prob_T = dlog_prob,
                              .dentropy_T = dentropy,
                              .sums = sums});
  return {AsVector(dlog_prob), AsVector(dentropy), LossSumsOf(sums.const_data_ptr<double>())};
}

inline Outcome Evaluate(const LossOptions& options, const Case& c) { return Evaluate(options, c.rows(), c); }

// e^d to the last bit as the backend computes it: the CPU's loops by the C library, ATen ops by their own.
inline double Exp(double d) { return OnCpuBackend() ? std::exp(d) : at::exp(AsTensor({d})).item<double>(); }

// A plain formula: [R] loss of [R] log-probs.
using Formula = std::function<at::Tensor(const at::Tensor& log_prob)>;

struct Reference {
  double value = 0;
  std::vector<double> gradient;
};

inline Reference Autograd(const Case& c, const at::Tensor& factor, const Formula& formula) {
  at::Tensor log_prob = AsTensor(c.log_prob).set_requires_grad(true);
  const at::Tensor loss = (formula(log_prob) * AsTensor(c.weight) * factor * c.mask_tensor()).sum();
  if (!loss.requires_grad()) return {loss.item<double>(), std::vector<double>(c.log_prob.size(), 0)};
  loss.backward();
  return {loss.item<double>(), AsVector(log_prob.grad())};
}

inline double LargestError(const std::vector<double>& actual, const std::vector<double>& expected) {
  double largest = 1e-300, error = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::isfinite(actual[i]) ? std::abs(actual[i] - expected[i]) : INFINITY);
  }
  return error / largest;
}

// Compares token by token: gradients of exp(20) and of 1 stand side by side.
inline void ExpectEachClose(const std::vector<double>& actual, const std::vector<double>& expected, const Case& c) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LE(std::abs(actual[i] - expected[i]), kTolerance * std::max(1.0, std::abs(expected[i])))
        << "token " << i << " d " << c.log_prob[i] - c.old_log_prob[i] << " x " << c.ref_log_prob[i] - c.log_prob[i]
        << " advantage " << c.advantage[i] << ": " << actual[i] << " and " << expected[i];
  }
}

inline LossOptions WithMode(LossMode mode) { return {.mode = mode, .clip_low = 0.2, .clip_high = 0.28}; }

// Three tokens whose mean d is `mean`, and a masked one.
inline Case GspoRollout(double mean, double adv) {
  Case c;
  for (const double offset : {0.3, -0.5, 0.2}) c.Add(mean + offset, 0, adv);
  c.Add(9, 0, adv, /*unmasked=*/0);
  c.weight = {0.25, 0.25, 0.25, 0};
  c.importance.clear();
  return c;
}

}  // namespace stemma::testing
