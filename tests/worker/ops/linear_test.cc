// Linear layers against fp64 autograd of the plain formula.
#include "worker/ops/linear.h"

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

struct Inputs {
  at::Tensor x, weight, bias, residual, dy;
};

Inputs MakeInputs(int64_t rows, at::ScalarType dtype = at::kDouble) {
  Random random(21);
  return {random.Normal({rows, 48}, dtype), random.Normal({80, 48}, dtype), random.Normal({80}, dtype),
          random.Normal({rows, 80}, dtype), random.Normal({rows, 80}, dtype)};
}

// The worst error of input, weight and bias gradients; the accumulators hold ones before.
double BackwardError(const Inputs& in) {
  const at::Tensor x = Leaf(in.x), weight = Leaf(in.weight), bias = Leaf(in.bias);
  const auto expected = AutogradOf({at::matmul(x, weight.t()) + bias}, {in.dy.to(at::kDouble)}, {x, weight, bias});
  const auto acc = in.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor dweight = at::ones({80, 48}, acc), dbias = at::ones({80}, acc);
  LinearBackwardWeight(testing::TestBackend(), in.dy, in.x, dweight, dbias);
  const double weights = std::max(RelativeError(dweight - 1, expected[1]), RelativeError(dbias - 1, expected[2]));
  return std::max(weights, RelativeError(LinearBackwardInput(in.dy, in.weight), expected[0]));
}

TEST(LinearTest, ForwardAddsBiasOrResidual) {
  for (const int64_t rows : {0, 1, 7, 130}) {
    const Inputs in = MakeInputs(rows);
    const at::Tensor product = at::matmul(in.x, in.weight.t());
    EXPECT_LT(RelativeError(LinearForward(in.x, in.weight, {}), product), kExact);
    EXPECT_LT(RelativeError(LinearForward(in.x, in.weight, in.bias), product + in.bias), kExact);
    EXPECT_LT(RelativeError(LinearForwardAdd(in.x, in.weight, in.residual), product + in.residual), kExact);
  }
}

TEST(LinearTest, BackwardAgreesWithAutogradAndAccumulates) {
  for (const int64_t rows : {1, 7, 130}) EXPECT_LT(BackwardError(MakeInputs(rows)), kExact) << rows;
}

TEST(LinearTest, NoRowsLeaveTheAccumulatorsAlone) {
  const Inputs in = MakeInputs(0);
  const at::Tensor dweight = at::ones({80, 48}, at::kDouble);
  LinearBackwardWeight(testing::TestBackend(), in.dy, in.x, dweight, {});
  EXPECT_TRUE(dweight.equal(at::ones({80, 48}, at::kDouble)));
  EXPECT_EQ(LinearBackwardInput(in.dy, in.weight).size(0), 0);
}

// More rows than are upcast at a time; sums stay in fp32 (bf16 sums would be off by 1e-2).
TEST(LinearTest, Bfloat16WeightGradientsAccumulateInSinglePrecision) {
  Random random(22);
  const at::Tensor x = random.Normal({1300, 24}, at::kBFloat16), dy = random.Normal({1300, 40}, at::kBFloat16);
  const at::Tensor dweight = at::zeros({40, 24}), dbias = at::zeros({40});
  LinearBackwardWeight(testing::TestBackend(), dy, x, dweight, dbias);
  const at::Tensor dy64 = dy.to(at::kDouble);
  EXPECT_LT(RelativeError(dweight, at::matmul(dy64.t(), x.to(at::kDouble))), 1e-5);
  EXPECT_LT(RelativeError(dbias, dy64.sum(0)), 1e-5);
  EXPECT_GT(RelativeError(at::matmul(dy.t(), x), at::matmul(dy64.t(), x.to(at::kDouble))), 1e-4);  // control
}

// A last slice of any size is added, the one of a single row too.
TEST(LinearTest, Bfloat16WeightGradientsCountEveryRow) {
  Random random(26);
  for (const int64_t rows : {1, 2, 511, 512, 513, 1024, 1025}) {
    const at::Tensor x = random.Normal({rows, 8}, at::kBFloat16), dy = random.Normal({rows, 6}, at::kBFloat16);
    // One row outweighs the others: without it the sum is far off.
    x[rows - 1].mul_(64);
    const at::Tensor dweight = at::zeros({6, 8});
    LinearBackwardWeight(testing::TestBackend(), dy, x, dweight, {});
    EXPECT_LT(RelativeError(dweight, at::matmul(dy.to(at::kDouble).t(), x.to(at::kDouble))), 1e-5) << rows;
  }
}

}  // namespace
}  // namespace stemma::worker
