// QKV split, QK-norm and rope against fp64 autograd of the plain formula.
#include "worker/ops/qkv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/testing/backends.h"
#include "tests/testing/tensors.h"

namespace stemma::worker {
namespace {

using testing::AutogradOf;
using testing::kExact;
using testing::Leaf;
using testing::Random;
using testing::RelativeError;

constexpr double kEps = 1e-6;
constexpr int64_t kPositions = 64;

ModelConfig Config(int64_t head_size) {
  ModelConfig config;
  config.head_size = head_size;
  config.rope_theta = 10000;
  return config;
}

// As Hugging Face writes it: x cos + rotate_half(x) sin with cos, sin of both halves.
at::Tensor PlainRope(const at::Tensor& x_HTE, const at::Tensor& positions, double theta) {
  const int64_t size = x_HTE.size(2), half = size / 2;
  const at::Tensor exponent = at::arange(0, size, 2, at::kDouble) / static_cast<double>(size);
  const at::Tensor frequency = at::pow(at::scalar_tensor(theta, at::kDouble), -exponent);
  const at::Tensor angle = positions.to(at::kDouble).unsqueeze(1) * frequency.unsqueeze(0);
  const at::Tensor angles = at::cat({angle, angle}, 1);
  const at::Tensor rotated = at::cat({-x_HTE.narrow(2, half, half), x_HTE.narrow(2, 0, half)}, 2);
  return x_HTE * angles.cos() + rotated * angles.sin();
}

at::Tensor PlainNorm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.pow(2).mean({-1}, /*keepdim=*/true) + kEps).rsqrt() * weight;
}

struct Case {
  QkvShape shape;
  int64_t rows;
  bool norm;
  at::ScalarType dtype = at::kDouble;
  bool accumulated_kv_gradients = false;  // dk, dv in fp32 beside a bf16 run
};

struct Inputs {
  at::Tensor qkv, positions, q_weight, k_weight, dq, dk, dv;
};

Inputs MakeInputs(const Case& c) {
  Random random(31);
  const auto [heads, kv_heads, size] = c.shape;
  const auto kv_dtype = c.accumulated_kv_gradients ? at::kFloat : c.dtype;
  return {random.Normal({c.rows, (heads + 2 * kv_heads) * size}, c.dtype),
          random.Integers(kPositions, c.rows),
          random.Normal({size}, c.dtype),
          random.Normal({size}, c.dtype),
          random.Normal({heads, c.rows, size}, c.dtype),
          random.Normal({c.rows, kv_heads, size}, kv_dtype),
          random.Normal({c.rows, kv_heads, size}, kv_dtype)};
}

// q [H, T, E]; k and v [T, K, E].
std::vector<at::Tensor> PlainHeads(const Case& c, const at::Tensor& qkv, const at::Tensor& positions,
                                   const at::Tensor& q_weight, const at::Tensor& k_weight) {
  const auto [heads, kv_heads, size] = c.shape;
  const at::Tensor all = qkv.view({c.rows, heads + 2 * kv_heads, size}).transpose(0, 1);
  at::Tensor q = all.narrow(0, 0, heads), k = all.narrow(0, heads, kv_heads);
  if (c.norm) {
    q = PlainNorm(q, q_weight);
    k = PlainNorm(k, k_weight);
  }
  return {PlainRope(q, positions, 10000), PlainRope(k, positions, 10000).transpose(0, 1),
          all.narrow(0, heads + kv_heads, kv_heads).transpose(0, 1)};
}

// The worst error of heads, dqkv and the norms' weights.
double ErrorOf(const Case& c, double* weight_error = nullptr) {
  const Inputs in = MakeInputs(c);
  const at::Tensor qkv = Leaf(in.qkv), q_weight = Leaf(in.q_weight), k_weight = Leaf(in.k_weight);
  const auto plain = PlainHeads(c, qkv, in.positions, q_weight, k_weight);
  const auto expected =
      torch::autograd::grad(plain, {qkv, q_weight, k_weight},
                            {in.dq.to(at::kDouble), in.dk.to(at::kDouble), in.dv.to(at::kDouble)}, true, false, true);

  const RopeTable rope = MakeRopeTable(Config(c.shape.head_size), kPositions, c.dtype, at::kCPU);
  const QkNorm norm = c.norm ? QkNorm{in.q_weight, in.k_weight, kEps} : QkNorm{};
  const QkvHeads heads = QkvForward(testing::TestBackend(), in.qkv, in.positions, rope, c.shape, norm);
  const auto acc = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor dq_norm = at::ones({c.shape.head_size}, acc), dk_norm = at::ones({c.shape.head_size}, acc);
  const at::Tensor dq = c.shape.num_heads > 0 ? in.dq : at::Tensor();
  const at::Tensor dqkv = QkvBackward(
      testing::TestBackend(), {dq, in.dk, in.dv, c.norm ? in.qkv : at::Tensor(), heads.rstd_TJ, dq_norm, dk_norm},
      in.positions, rope, norm, c.dtype);
  double worst = std::max(RelativeError(heads.k_TKE, plain[1]), RelativeError(heads.v_TKE, plain[2]));
  if (c.shape.num_heads > 0) worst = std::max(worst, RelativeError(heads.q_HTE, plain[0]));
  if (c.norm) {
    double weights = RelativeError(dk_norm - 1, expected[2]);
    if (c.shape.num_heads > 0) weights = std::max(weights, RelativeError(dq_norm - 1, expected[1]));
    if (weight_error != nullptr) *weight_error = weights;
    worst = std::max(worst, weights);
  }
  EXPECT_EQ(dqkv.scalar_type(), c.dtype);
  return std::max(worst, RelativeError(dqkv, expected[0]));
}

TEST(QkvTest, AgreesWithAutograd) {
  for (const QkvShape& shape : {QkvShape{4, 4, 16}, {4, 2, 32}, {8, 1, 64}, {6, 2, 80}, {2, 2, 128}, {0, 2, 16}}) {
    for (const int64_t rows : {1, 5, 130}) {
      for (const bool norm : {false, true}) {
        EXPECT_LT(ErrorOf({shape, rows, norm}), kExact)
            << shape.num_heads << "/" << shape.num_kv_heads << " of " << shape.head_size << ", " << rows << " rows, "
            << (norm ? "QK-norm" : "no norm");
      }
    }
  }
}

TEST(QkvTest, LowerPrecisionsRoundOnlyTheirResults) {
  const QkvShape shape{4, 2, 64};
  for (const bool norm : {false, true}) {
    EXPECT_LT(ErrorOf({shape, 70, norm, at::kFloat}), 1e-5);  // weights: sums of 280 terms of 6e-8
    double weight_error = 0;
    EXPECT_LT(ErrorOf({shape, 70, norm, at::kBFloat16}, &weight_error), 5e-3);  // half an ulp: 2^-9
    EXPECT_LT(weight_error, 1e-5);
    EXPECT_LT(ErrorOf({shape, 70, norm, at::kBFloat16, true}), 5e-3);
  }
}

TEST(QkvTest, ReadsGradientsThatAreViewsOfALongerBuffer) {
  const Case c{{4, 2, 16}, 9, true};
  const Inputs in = MakeInputs(c);
  const RopeTable rope = MakeRopeTable(Config(16), kPositions, at::kDouble, at::kCPU);
  const QkNorm norm{in.q_weight, in.k_weight, kEps};
  const QkvHeads heads = QkvForward(testing::TestBackend(), in.qkv, in.positions, rope, c.shape, norm);
  const auto run = [&](const at::Tensor& dk, const at::Tensor& dv) {
    const at::Tensor unused = at::zeros({16}, at::kDouble);
    return QkvBackward(testing::TestBackend(), {in.dq, dk, dv, in.qkv, heads.rstd_TJ, unused, unused}, in.positions,
                       rope, norm, at::kDouble);
  };
  const auto in_longer = [](const at::Tensor& x) { return at::cat({x, x}, 1).narrow(1, 0, x.size(1)); };
  EXPECT_TRUE(run(in.dk, in.dv).equal(run(in_longer(in.dk), in_longer(in.dv))));
}

TEST(QkvTest, NoRowsGiveNothing) {
  const Case c{{4, 2, 16}, 0, true};
  const Inputs in = MakeInputs(c);
  const RopeTable rope = MakeRopeTable(Config(16), kPositions, at::kDouble, at::kCPU);
  const QkvHeads heads =
      QkvForward(testing::TestBackend(), in.qkv, in.positions, rope, c.shape, {in.q_weight, in.k_weight, kEps});
  EXPECT_EQ(heads.q_HTE.numel(), 0);
}

// Rotating by the wrong sign is orthogonal, so norms look right; the gradient is not.
TEST(QkvControlTest, RotatingTheGradientTheWrongWayFails) {
  const Case c{{4, 2, 16}, 9, false};
  const Inputs in = MakeInputs(c);
  const at::Tensor qkv = Leaf(in.qkv);
  const auto plain = PlainHeads(c, qkv, in.positions, in.q_weight, in.k_weight);
  const at::Tensor expected = AutogradOf(plain, {in.dq, in.dk, in.dv}, {qkv})[0];
  RopeTable rope = MakeRopeTable(Config(16), kPositions, at::kDouble, at::kCPU);
  const auto backward = [&] {
    return QkvBackward(testing::TestBackend(), {in.dq, in.dk, in.dv, {}, {}, {}, {}}, in.positions, rope, {},
                       at::kDouble);
  };
  EXPECT_LT(RelativeError(backward(), expected), kExact);
  rope.sin_PE.neg_();
  EXPECT_GT(RelativeError(backward(), expected), 1e-1);
}

TEST(QkvControlTest, RestartedPositionsFail) {
  const Case c{{4, 2, 16}, 9, false};
  const Inputs in = MakeInputs(c);
  const RopeTable rope = MakeRopeTable(Config(16), kPositions, at::kDouble, at::kCPU);
  const at::Tensor positions = at::arange(20, 29), restarted = at::arange(0, 9);
  const at::Tensor right = QkvForward(testing::TestBackend(), in.qkv, positions, rope, c.shape, {}).k_TKE;
  EXPECT_GT(RelativeError(QkvForward(testing::TestBackend(), in.qkv, restarted, rope, c.shape, {}).k_TKE, right), 1e-1);
}

// Hugging Face's `llama3`: frequencies by wavelength against the original context.
TEST(RopeTableTest, Llama3ScalesLongWavesOnly) {
  ModelConfig config = Config(64);
  config.rope_theta = 500000;
  config.rope_scaling = Llama3RopeScaling{8, 1, 4, 8192};
  const RopeTable table = MakeRopeTable(config, 2, at::kDouble, at::kCPU);
  for (int64_t i = 0; i < 32; ++i) {
    const double plain = std::pow(500000.0, -2.0 * static_cast<double>(i) / 64);
    const double wavelength = 2 * std::numbers::pi / plain;
    double expected = plain;
    if (wavelength > 8192) {
      expected = plain / 8;
    } else if (wavelength >= 2048) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = ((1 - smooth) / 8 + smooth) * plain;
    }
    EXPECT_NEAR(table.sin_PE[1][i].item<double>(), std::sin(expected), 1e-15) << i;
    EXPECT_NEAR(table.cos_PE[1][i].item<double>(), std::cos(expected), 1e-15) << i;
  }
}

TEST(RopeTableTest, IsKeptInTheAccumulationType) {
  EXPECT_EQ(MakeRopeTable(Config(16), 4, at::kBFloat16, at::kCPU).cos_PE.scalar_type(), at::kFloat);
  EXPECT_EQ(MakeRopeTable(Config(16), 4, at::kFloat, at::kCPU).cos_PE.scalar_type(), at::kFloat);
  EXPECT_EQ(MakeRopeTable(Config(16), 4, at::kDouble, at::kCPU).cos_PE.scalar_type(), at::kDouble);
}

}  // namespace
}  // namespace stemma::worker
