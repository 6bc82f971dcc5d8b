// RmsNorm against fp64 autograd of the plain formula.
#include "worker/ops/norm.h"

#include <gtest/gtest.h>

#include "tests/testing/backends.h"
#include "tests/testing/tensors.h"

namespace stemma::worker {
namespace {

using testing::AutogradOf;
using testing::kExact;
using testing::Leaf;
using testing::Random;
using testing::RelativeError;

constexpr double kEps = 1e-5;

at::Tensor Plain(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.pow(2).mean({-1}, /*keepdim=*/true) + kEps).rsqrt() * weight;
}

struct Inputs {
  at::Tensor x, weight, dy, residual;
};

Inputs MakeInputs(int64_t rows, int64_t width, at::ScalarType dtype) {
  Random random(11);
  return {random.Normal({rows, width}, dtype), random.Normal({width}, dtype), random.Normal({rows, width}, dtype),
          random.Normal({rows, width}, dtype)};
}

struct Errors {
  double y, dx, dweight;
};

Errors ErrorsOf(const Inputs& in) {
  const at::Tensor x = Leaf(in.x), weight = Leaf(in.weight);
  const at::Tensor y = Plain(x, weight);
  const auto expected = AutogradOf({y}, {in.dy.to(at::kDouble)}, {x, weight});
  const RmsNormResult result = RmsNormForward(testing::TestBackend(), in.x, in.weight, kEps);
  at::Tensor dweight = at::ones({in.x.size(1)}, result.rstd_T.options());  // what is there stays
  const at::Tensor dx =
      RmsNormBackward(testing::TestBackend(), {in.x, result.rstd_T, in.weight}, in.dy, in.residual, dweight);
  return {RelativeError(result.y_TD, y), RelativeError(dx, expected[0] + in.residual),
          RelativeError(dweight - 1, expected[1])};
}

TEST(RmsNormTest, AgreesWithAutograd) {
  for (const int64_t rows : {1, 2, 31, 33, 257}) {
    for (const int64_t width : {1, 7, 16, 64, 100, 512}) {
      const Errors errors = ErrorsOf(MakeInputs(rows, width, at::kDouble));
      EXPECT_LT(errors.y, kExact) << rows << " x " << width;
      EXPECT_LT(errors.dx, kExact) << rows << " x " << width;
      EXPECT_LT(errors.dweight, kExact) << rows << " x " << width;
    }
  }
}

TEST(RmsNormTest, LowerPrecisionsRoundOnlyTheirResults) {
  const Errors fp32 = ErrorsOf(MakeInputs(257, 512, at::kFloat));
  EXPECT_LT(fp32.y, 1e-6);  // a few roundings of 6e-8
  EXPECT_LT(fp32.dx, 1e-6);
  EXPECT_LT(fp32.dweight, 1e-5);  // a sum of 257
  const Errors bf16 = ErrorsOf(MakeInputs(257, 512, at::kBFloat16));
  EXPECT_LT(bf16.y, 4e-3);  // half an ulp: 2^-9
  EXPECT_LT(bf16.dx, 4e-3);
  EXPECT_LT(bf16.dweight, 1e-5);  // kept in fp32
}

TEST(RmsNormTest, WithoutResidualReturnsTheGradientAlone) {
  const Inputs in = MakeInputs(5, 33, at::kDouble);
  const RmsNormResult result = RmsNormForward(testing::TestBackend(), in.x, in.weight, kEps);
  at::Tensor dweight = at::zeros({33}, at::kDouble);
  const at::Tensor with =
      RmsNormBackward(testing::TestBackend(), {in.x, result.rstd_T, in.weight}, in.dy, in.residual, dweight);
  const at::Tensor without =
      RmsNormBackward(testing::TestBackend(), {in.x, result.rstd_T, in.weight}, in.dy, {}, dweight);
  EXPECT_LT(RelativeError(without + in.residual, with), kExact);
}

TEST(RmsNormTest, NoRowsGiveNothing) {
  const Inputs in = MakeInputs(0, 8, at::kDouble);
  const RmsNormResult result = RmsNormForward(testing::TestBackend(), in.x, in.weight, kEps);
  at::Tensor dweight = at::zeros({8}, at::kDouble);
  EXPECT_EQ(RmsNormBackward(testing::TestBackend(), {in.x, result.rstd_T, in.weight}, in.dy, {}, dweight).numel(), 0);
  EXPECT_EQ(dweight.abs().sum().item<double>(), 0);
}

TEST(RmsNormTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  const Inputs in = MakeInputs(300, 96, at::kFloat);
  const RmsNormResult result = RmsNormForward(testing::TestBackend(), in.x, in.weight, kEps);
  std::vector<at::Tensor> dweights;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    dweights.push_back(at::zeros({96}));
    RmsNormBackward(testing::TestBackend(), {in.x, result.rstd_T, in.weight}, in.dy, in.residual, dweights.back());
  }
  at::set_num_threads(1);
  EXPECT_TRUE(dweights[0].equal(dweights[1]) && dweights[0].equal(dweights[2]));
}

// Without the term of the mean, dx = rstd dy w.
TEST(RmsNormControlTest, ABackwardWithoutTheMeanTermFails) {
  const Inputs in = MakeInputs(33, 64, at::kDouble);
  const at::Tensor x = Leaf(in.x), weight = Leaf(in.weight);
  const auto expected = AutogradOf({Plain(x, weight)}, {in.dy}, {x, weight});
  const at::Tensor rstd = RmsNormForward(testing::TestBackend(), in.x, in.weight, kEps).rstd_T;
  EXPECT_GT(RelativeError(rstd.unsqueeze(1) * in.dy * in.weight, expected[0]), 1e-2);
}

}  // namespace
}  // namespace stemma::worker
