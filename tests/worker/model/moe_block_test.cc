// A block of experts against fp64 autograd of its formula, row by row. Sizes are drawn.
#include "worker/model/moe_block.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/backends.h"
#include "tests/testing/draw.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/tensors.h"
#include "tests/testing/whole_model.h"

namespace stemma::testing {
namespace {

// The parameters that the block reads, in fp64 leaves.
struct Leaves {
  at::Tensor norm_D, router_XD, gate_up_XJD, down_XDF;
  std::vector<at::Tensor> all() const { return {norm_D, router_XD, gate_up_XJD, down_XDF}; }
};

// Returns y = x + Σ w · down(silu(gate(h)) · up(h)), h = norm(x).
at::Tensor PlainBlock(const at::Tensor& x_TD, const Leaves& l, const Experts& experts, double eps) {
  const at::Tensor h_TD = x_TD * (x_TD.square().mean(1, /*keepdim=*/true) + eps).rsqrt() * l.norm_D;
  const at::Tensor probs_TX = h_TD.matmul(l.router_XD.t()).softmax(1);
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x_TD.size(0); ++t) {
    const at::Tensor chosen_U = at::argsort(probs_TX[t], -1, /*descending=*/true).narrow(0, 0, experts.per_token);
    at::Tensor weights_U = probs_TX[t].index_select(0, chosen_U), y_D = x_TD[t];
    if (experts.weights_sum_to_one) weights_U = weights_U / weights_U.sum();
    for (int64_t u = 0; u < experts.per_token; ++u) {
      const auto e = chosen_U[u].item<int64_t>();
      const std::vector<at::Tensor> halves = l.gate_up_XJD[e].matmul(h_TD[t]).chunk(2);
      y_D = y_D + weights_U[u] * l.down_XDF[e].matmul(at::silu(halves[0]) * halves[1]);
    }
    rows.push_back(y_D);
  }
  return at::stack(rows);
}

class MoeBlockTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Draw draw(static_cast<uint64_t>(GetParam()));
    Random random(static_cast<uint64_t>(GetParam()));
    ModelConfig config = SyntheticModel({.hidden = draw.Between(3, 24), .layers = 2, .ffn = draw.Between(1, 20)});
    const int64_t count = draw.Between(1, 7);
    config.experts = Experts{count, draw.Between(1, count), draw.Chance(50)};
    weights_ = MakeWeights(WholeModel(config), at::kDouble, at::kCPU);
    for (Parameter& p : weights_.parameters) p.weight.copy_(random.Normal(p.weight.sizes()));
    rows_ = draw.Between(1, 25);
    x_TD_ = random.Normal({rows_, config.hidden_size});
    dy_TD_ = random.Normal({rows_, config.hidden_size});
  }

  LayerContext context() const { return {&TestBackend(), &weights_}; }

  // The gradient of the second layer's parameter of that role, as wide as one expert's.
  at::Tensor Grad(TensorRole role, const at::Tensor& like) const {
    return weights_.at(weights_.layers[1][role]).grad.view(like.sizes());
  }
  at::Tensor ByExpert(TensorRole role) const {
    const at::Tensor& weight = weights_.at(weights_.layers[1][role]).weight;
    return Leaf(weight.view({weights_.config.experts->count, -1, weight.size(1)}));
  }

  Weights weights_;
  int64_t rows_ = 0;
  at::Tensor x_TD_, dy_TD_;
};

TEST_P(MoeBlockTest, AgreesWithAutogradUnderEveryPolicy) {
  const ModelConfig& c = weights_.config;
  const at::Tensor x_leaf = Leaf(x_TD_);
  const Leaves leaves = {Leaf(weights_.at(weights_.layers[1][TensorRole::kNorm2]).weight),
                         Leaf(weights_.at(weights_.layers[1][TensorRole::kRouter]).weight),
                         ByExpert(TensorRole::kGateUp), ByExpert(TensorRole::kDown)};
  const at::Tensor y = PlainBlock(x_leaf, leaves, *c.experts, c.rms_norm_eps);
  std::vector<at::Tensor> inputs = leaves.all();
  inputs.push_back(x_leaf);
  const std::vector<at::Tensor> expected = torch::autograd::grad({y}, inputs, {dy_TD_}, /*retain_graph=*/true,
                                                                 /*create_graph=*/false, /*allow_unused=*/true);
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S4}) {
    for (Parameter& p : weights_.parameters) p.grad.zero_();
    const LayerContext context = this->context();
    const MoeBlock block(context, /*layer=*/1, rows_);
    MlpTape tape;
    EXPECT_LT(RelativeError(block.Forward(x_TD_, policy, tape), y), kExact);
    tape.x_TD = x_TD_;  // S4 keeps it elsewhere
    const at::Tensor dx = block.Backward(dy_TD_.clone(), std::move(tape));
    EXPECT_LT(RelativeError(dx, expected[4]), kExact) << v1::TapePolicy_Name(policy);
    const TensorRole roles[] = {TensorRole::kNorm2, TensorRole::kRouter, TensorRole::kGateUp, TensorRole::kDown};
    for (size_t i = 0; i < 4; ++i) {
      const at::Tensor made = Grad(roles[i], inputs[i]);
      // A router of one expert, or of all experts with weights that sum to one, may have no gradient but roundings'.
      const double scale = std::max(1.0, expected[i].defined() ? expected[i].abs().max().item<double>() : 0);
      const at::Tensor error = expected[i].defined() ? made - expected[i] : made;
      EXPECT_LT(error.abs().max().item<double>(), kExact * scale * 10) << i << " " << v1::TapePolicy_Name(policy);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MoeBlockTest, ::testing::Range(1, 25));

}  // namespace
}  // namespace stemma::testing
