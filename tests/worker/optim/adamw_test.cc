// AdamW against the plain formula in fp64, and what it says of numbers that are not finite.
#include "worker/optim/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/testing/backends.h"
#include "tests/testing/namespaces.h"
#include "tests/worker/optim/parameters.h"
#include "worker/memory/thread_copy_engine.h"

namespace stemma::testing {
namespace {

TEST(AdamwTest, AgreesWithThePlainFormula) {
  const v1::AdamParams adam = Adam();
  std::vector<Parameter> parameters = MakeParameters(at::kDouble, {{37, 301}, {53}});
  std::vector<at::Tensor> w, m, v;
  for (const Parameter& p : parameters) {
    w.push_back(p.master.clone());
    m.push_back(at::zeros_like(p.master));
    v.push_back(at::zeros_like(p.master));
  }
  constexpr double kClip = 0.5;
  for (int64_t step = 1; step <= 3; ++step) {
    SetGradients(parameters, step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor g = parameters[i].grad * kClip;
      m[i] = adam.beta1() * m[i] + (1 - adam.beta1()) * g;
      v[i] = adam.beta2() * v[i] + (1 - adam.beta2()) * g * g;
      const double decay = parameters[i].is_matrix() ? adam.weight_decay() : 0;
      const double t = static_cast<double>(step);
      const at::Tensor m_hat = m[i] / (1 - std::pow(adam.beta1(), t)), v_hat = v[i] / (1 - std::pow(adam.beta2(), t));
      w[i] = w[i] * (1 - adam.learning_rate() * decay) - adam.learning_rate() * m_hat / (v_hat.sqrt() + adam.eps());
    }
    AdamwStep(TestBackend(), parameters, AllRanges(parameters), {adam, kClip, step});
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LT((parameters[i].master - w[i]).abs().max().item<double>(), 1e-14);  // values of some units, three steps
  }
}

// --------------------------------------------------------------------------------------------------- what is not
// finite

const std::vector<std::vector<int64_t>> kSizes = {{53}, {37, 31}, {3}, {5, 129}};

// A step after `spoil`, in slabs of 64 elements: what AdamwStep says of it.
std::string Reported(at::ScalarType run_dtype, v1::OptimizerResidency residency, const v1::AdamParams& adam,
                     const std::function<void(std::vector<Parameter>&)>& spoil) {
  std::vector<Parameter> parameters = MakeParameters(run_dtype, kSizes, residency);
  SetGradients(parameters, 1);
  spoil(parameters);
  ThreadCopyEngine copies;
  return AdamwStep(TestBackend(), parameters, AllRanges(parameters), {adam, 1, 1}, {&copies, 64});
}

class NonfiniteUpdateTest : public ::testing::TestWithParam<std::tuple<at::ScalarType, v1::OptimizerResidency>> {};

TEST_P(NonfiniteUpdateTest, NamesTheParameterWhereverItIs) {
  const auto [dtype, residency] = GetParam();
  EXPECT_EQ(Reported(dtype, residency, Adam(), [](auto&) {}), "");
  for (size_t p = 0; p < kSizes.size(); ++p) {
    const int64_t count = MakeParameters(dtype, kSizes)[p].grad.numel();
    for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
      const auto gradient = [&](double value) {
        return [=](std::vector<Parameter>& parameters) { parameters[p].grad.view(-1)[place] = value; };
      };
      const std::string name = "p" + std::to_string(p);
      EXPECT_EQ(Reported(dtype, residency, Adam(), gradient(std::nan(""))), name) << place;
      // Finite, but its square is not: the weight stays finite, and would never move again.
      const double large = dtype == at::kDouble ? 1e200 : 1e25;
      EXPECT_EQ(Reported(dtype, residency, Adam(), gradient(large)), name) << place;
      EXPECT_EQ(Reported(dtype, residency, Adam(), gradient(dtype == at::kDouble ? 1e150 : 1e18)), "") << place;
      const auto moment = [&](std::vector<Parameter>& parameters) {
        parameters[p].exp_avg.view(-1)[place] = std::numeric_limits<double>::infinity();
      };
      EXPECT_EQ(Reported(dtype, residency, Adam(), moment), name) << "a first moment shows in its weight";
    }
  }
}

TEST_P(NonfiniteUpdateTest, SeesParametersThatDestroyEverything) {
  const auto [dtype, residency] = GetParam();
  const auto nothing = [](std::vector<Parameter>&) {};
  v1::AdamParams adam = Adam();
  adam.set_learning_rate(1e300);
  EXPECT_EQ(Reported(dtype, residency, adam, nothing).empty(), dtype == at::kDouble);
  adam = Adam();
  adam.set_eps(1e-60);  // 0 in fp32: a weight whose gradient is 0 becomes 0 / 0
  const auto zero_gradient = [](std::vector<Parameter>& parameters) { parameters[2].grad.zero_(); };
  EXPECT_EQ(Reported(dtype, residency, adam, zero_gradient), dtype == at::kDouble ? "" : "p2");
}

TEST(NonfiniteUpdateBf16Test, AMasterThatOverflowsInItsWeightIsSeen) {
  const auto large_master = [](std::vector<Parameter>& parameters) {
    parameters[1].master.view(-1)[7] = 3.4e38;  // above bf16's largest number, 3.39e38
  };
  v1::AdamParams adam = Adam();
  adam.set_weight_decay(0);
  EXPECT_EQ(Reported(at::kBFloat16, v1::DEVICE, adam, large_master), "p1");
  EXPECT_EQ(Reported(at::kFloat, v1::DEVICE, adam, large_master), "");
}

INSTANTIATE_TEST_SUITE_P(All, NonfiniteUpdateTest,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kDouble),
                                            ::testing::Values(v1::DEVICE, v1::HOST)));

TEST(GradNormTest, IsTheRootOfTheSumOfAllSquares) {
  std::vector<Parameter> parameters = MakeParameters(at::kDouble, {{4, 9}, {16}});
  const ParameterRanges ranges = AllRanges(parameters);
  for (Parameter& p : parameters) p.grad.fill_(p.is_matrix() ? 0.5 : -2.0);
  EXPECT_DOUBLE_EQ(GradNormSquared(TestBackend(), parameters, ranges), 36 * 0.25 + 16 * 4.0);
  EXPECT_EQ(FirstNonfinite(TestBackend(), parameters, ranges), "");
  parameters[1].grad[3] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(std::isfinite(GradNormSquared(TestBackend(), parameters, ranges)));
  EXPECT_EQ(FirstNonfinite(TestBackend(), parameters, ranges), parameters[1].name);
  parameters[1].grad[3] = 0;
  parameters[1].grad[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(FirstNonfinite(TestBackend(), parameters, ranges), parameters[1].name) << "the first number of a range";
}

}  // namespace
}  // namespace stemma::testing
