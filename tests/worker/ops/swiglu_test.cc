// SwiGLU against fp64 autograd of the plain formula.
#include "worker/ops/swiglu.h"

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

at::Tensor Plain(const at::Tensor& x) {
  const auto halves = x.chunk(2, 1);
  return halves[0] * at::sigmoid(halves[0]) * halves[1];
}

struct Errors {
  double y, dx;
};

Errors ErrorsOf(const at::Tensor& x, const at::Tensor& dy) {
  const at::Tensor leaf = Leaf(x);
  const at::Tensor y = Plain(leaf);
  const auto expected = AutogradOf({y}, {dy.to(at::kDouble)}, {leaf});
  return {RelativeError(SwigluForward(testing::TestBackend(), x), y),
          RelativeError(SwigluBackward(testing::TestBackend(), dy, x), expected[0])};
}

TEST(SwigluTest, AgreesWithAutograd) {
  Random random(3);
  for (const int64_t rows : {0, 1, 5, 300}) {
    for (const int64_t width : {1, 15, 64, 177}) {
      const Errors errors = ErrorsOf(random.Normal({rows, 2 * width}) * 3, random.Normal({rows, width}));
      EXPECT_LT(errors.y, kExact) << rows << " x " << width;
      EXPECT_LT(errors.dx, kExact) << rows << " x " << width;
    }
  }
}

TEST(SwigluTest, LowerPrecisionsRoundOnlyTheirResults) {
  Random random(4);
  const at::Tensor x = random.Normal({300, 354}) * 3, dy = random.Normal({300, 177});
  const Errors fp32 = ErrorsOf(x.to(at::kFloat), dy.to(at::kFloat));
  EXPECT_LT(fp32.y, 1e-6);  // a few roundings of 6e-8
  EXPECT_LT(fp32.dx, 1e-6);
  const Errors bf16 = ErrorsOf(x.to(at::kBFloat16), dy.to(at::kBFloat16));
  EXPECT_LT(bf16.y, 4e-3);  // half an ulp: 2^-9
  EXPECT_LT(bf16.dx, 4e-3);
}

// The vectorised exp over its whole range: relative error where silu is a normal number, no NaN anywhere.
TEST(SwigluTest, HoldsForEveryGateThatFloatCanTell) {
  const at::Tensor gate = at::linspace(-120, 120, 100001, at::kFloat).unsqueeze(1);
  const at::Tensor x = at::cat({gate, at::ones_like(gate)}, 1);
  const at::Tensor y = SwigluForward(testing::TestBackend(), x).to(at::kDouble), expected = Plain(x.to(at::kDouble));
  const at::Tensor normal = (gate.abs() < 80).to(at::kDouble);
  const at::Tensor error = (y - expected).abs() / (expected.abs() + 1e-300);
  EXPECT_LT((error * normal).max().item<double>(), 5e-7);  // exp, 1 + e and two products: a few ulp
  EXPECT_LT((y - expected).abs().max().item<double>(), 1e-5);
  EXPECT_FALSE(y.isnan().any().item<bool>());
}

TEST(SwigluTest, NanAndInfinityAreNotHidden) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor x = at::ones({2, 64});
  x.select(1, 3).fill_(nan);
  x.select(1, 40).fill_(inf);
  const at::Tensor y = SwigluForward(testing::TestBackend(), x),
                   dx = SwigluBackward(testing::TestBackend(), at::ones({2, 32}), x);
  EXPECT_TRUE(y.select(1, 3).isnan().all().item<bool>());
  EXPECT_TRUE(dx.select(1, 3).isnan().all().item<bool>());
  EXPECT_TRUE(y.select(1, 8).isinf().all().item<bool>());
}

// silu'(g) is not σ(g).
TEST(SwigluControlTest, ABackwardWithoutTheDerivativeOfSigmoidFails) {
  Random random(5);
  const at::Tensor x = random.Normal({9, 64}), dy = random.Normal({9, 32});
  const at::Tensor leaf = Leaf(x);
  const at::Tensor expected = AutogradOf({Plain(leaf)}, {dy}, {leaf})[0].narrow(1, 0, 32);
  const at::Tensor wrong = dy * x.narrow(1, 32, 32) * at::sigmoid(x.narrow(1, 0, 32));
  EXPECT_GT(RelativeError(wrong, expected), 1e-2);
  EXPECT_LT(RelativeError(SwigluBackward(testing::TestBackend(), dy, x).narrow(1, 0, 32), expected), kExact);
}

}  // namespace
}  // namespace stemma::worker
