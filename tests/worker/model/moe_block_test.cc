// A block of experts against fp64 autograd of its formula, row by row. Sizes are drawn.
#include "worker/model/moe_block.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/backends.h"
#include "tests/testing/draw.h"
#include "tests/testing/hf_slices.h"
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

// A layer of experts whole, and as each of several tensor-parallel ranks has it, which compute one after the other:
// what they would exchange, they have here themselves, and what they would add up is added up by the test.
class ExpertRanksTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Draw draw(static_cast<uint64_t>(GetParam()));
    random_ = Random(static_cast<uint64_t>(GetParam()));
    const int64_t ep = draw.Of<int64_t>({2, 4}), tp = ep == 4 ? 4 : draw.Of<int64_t>({2, 4});
    ModelConfig config = SyntheticModel({.hidden = draw.Between(3, 24),
                                         .layers = 1,
                                         .ffn = tp / ep * draw.Between(1, 9),
                                         .experts = Experts{.count = ep * draw.Between(1, 3)}});
    config.experts->per_token = draw.Between(1, config.experts->count);
    config.experts->weights_sum_to_one = draw.Chance(50);
    whole_ = MakeWeights(WholeModel(config), at::kDouble, at::kCPU);
    for (Parameter& p : whole_.parameters) p.weight.copy_(random_.Normal(p.weight.sizes()));
    if (draw.Chance(30)) Of(whole_, TensorRole::kRouter).weight.zero_();  // all rows choose the first experts
    for (int64_t rank = 0; rank < tp; ++rank) {
      const auto shard = MakeModelShard(config, {.tp_rank = rank, .tp_size = tp, .ep_size = ep});
      ranks_.push_back(MakeWeights(shard.value(), at::kDouble, at::kCPU));
      for (const HfTensor& tensor : ranks_.back().hf_tensors) {
        Rows(ranks_.back(), tensor, &Parameter::weight).copy_(Box(tensor, &Parameter::weight));
      }
    }
    rows_ = draw.Between(1, 25);
    x_TD_ = random_.Normal({rows_, config.hidden_size});
    dy_TD_ = random_.Normal({rows_, config.hidden_size});
  }

  static Parameter& Of(Weights& weights, TensorRole role) {
    return weights.parameters[static_cast<size_t>(weights.layers[0][role])];
  }
  static at::Tensor Rows(const Weights& weights, const HfTensor& tensor, at::Tensor Parameter::*what) {
    return (weights.at(tensor.parameter).*what).slice(0, tensor.row_begin, tensor.row_end);
  }
  // What a rank's tensor is of the whole model's.
  at::Tensor Box(const HfTensor& tensor, at::Tensor Parameter::*what) const {
    at::Tensor box =
        Rows(whole_, HfTensorOf(whole_, tensor.name), what).slice(0, tensor.box.row_begin, tensor.box.row_end);
    return box.dim() > 1 ? box.slice(1, tensor.box.column_begin, tensor.box.column_end) : box;
  }

  struct Pass {
    at::Tensor y_TD, dx_TD;
    bool kept = false;  // products, for the backward
    int64_t assignments = 0;
  };
  Pass Run(const Weights& weights, v1::TapePolicy policy) const {
    for (const Parameter& p : weights.parameters) p.grad.zero_();
    const LayerContext context = {&TestBackend(), &weights};
    const MoeBlock block(context, /*layer=*/0, rows_);
    MlpTape tape;
    Pass pass;
    pass.y_TD = block.Forward(x_TD_, policy, tape);
    pass.kept = tape.gate_up_AJ.defined();
    const int64_t begin = weights.shard.expert_begin(), end = begin + weights.config.experts->held();
    const at::Tensor& experts_TU = tape.routing.experts_TU;
    pass.assignments = (experts_TU >= begin).logical_and(experts_TU < end).sum().item<int64_t>();
    tape.x_TD = x_TD_;
    pass.dx_TD = block.Backward(dy_TD_.clone(), std::move(tape));
    return pass;
  }

  Random random_{0};
  Weights whole_;
  std::vector<Weights> ranks_;
  int64_t rows_ = 0;
  at::Tensor x_TD_, dy_TD_;
};

TEST_P(ExpertRanksTest, WhatTheRanksComputeAddsUpToTheBlock) {
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S4}) {
    const Pass whole = Run(whole_, policy);
    at::Tensor y_TD = x_TD_.clone(), dx_TD = dy_TD_.clone();
    std::map<std::string, at::Tensor> partial;
    for (const Weights& rank : ranks_) {
      const Pass pass = Run(rank, policy);
      y_TD += pass.y_TD - x_TD_;
      dx_TD += pass.dx_TD - dy_TD_;
      for (const HfTensor& tensor : rank.hf_tensors) {
        const at::Tensor grad = Rows(rank, tensor, &Parameter::grad);
        if (tensor.partial_over_tp) {
          at::Tensor& sum = partial[tensor.name];
          sum = sum.defined() ? sum + grad : grad.clone();
        } else if (tensor.name.find(".experts.") != std::string::npos) {
          EXPECT_LT((grad - Box(tensor, &Parameter::grad)).abs().max().item<double>(), 1e-10) << tensor.name;
        }
      }
    }
    EXPECT_LT(RelativeError(y_TD, whole.y_TD), kExact);
    EXPECT_LT(RelativeError(dx_TD, whole.dx_TD), kExact);
    for (const auto& [name, sum] : partial) {  // of the router of one expert, no more than roundings
      const at::Tensor expected = Rows(whole_, HfTensorOf(whole_, name), &Parameter::grad);
      EXPECT_LT((sum - expected).abs().max().item<double>(), 1e-10) << name;
    }
  }
}

// A rank keeps the products of at most half again of what it has where rows choose evenly, and has the same gradients
// where it has more.
TEST_P(ExpertRanksTest, ARankWithMoreRowsThanArePlannedForKeepsNoProducts) {
  const Experts& experts = *whole_.config.experts;
  for (const Weights& rank : ranks_) {
    const Pass kept = Run(rank, v1::S0);
    const int64_t even = rows_ * experts.per_token,
                  most = rows_ * std::min(experts.per_token, rank.config.experts->held());
    const bool few = 2 * kept.assignments * rank.shard.place.ep_size <= 3 * even;
    EXPECT_LE(kept.assignments, most);
    EXPECT_EQ(kept.kept, few) << kept.assignments << " assignments of " << even;
    std::vector<at::Tensor> grads;
    for (const Parameter& p : rank.parameters) grads.push_back(p.grad.clone());
    const Pass again = Run(rank, v1::S4);
    EXPECT_FALSE(again.kept);
    EXPECT_TRUE(at::equal(kept.dx_TD, again.dx_TD));
    for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::equal(grads[i], rank.parameters[i].grad)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExpertRanksTest, ::testing::Range(1, 41));

}  // namespace
}  // namespace stemma::testing
