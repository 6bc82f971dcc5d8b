// Sharded parameters as they are loaded: drawn models and meshes, each rank's parts against the whole weights.
#include "worker/model/sharded_weights.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/model/model_init.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/model/gradient_sums.h"
#include "worker/model/weights_io.h"

namespace stemma::testing {
namespace {

class ShardedWeightsTest : public ::testing::TestWithParam<int> {
 protected:
  ShardedWeightsTest() : draw_(FirstSeed() + static_cast<uint64_t>(GetParam())) {}

  void SetUp() override {
    const int64_t tp = draw_.Between(1, 2), pp = draw_.Between(1, 3), kv_heads = tp * draw_.Between(1, 2);
    ModelConfig config = SyntheticModel({.hidden = 2 * draw_.Between(2, 10),
                                         .layers = pp + draw_.Between(0, 2),
                                         .heads = kv_heads * draw_.Between(1, 2),
                                         .kv_heads = kv_heads,
                                         .head_size = 4,
                                         .ffn = tp * draw_.Between(1, 9),
                                         .vocab = tp + draw_.Between(1, 30)});
    const auto families = Families();
    config.SetFamily(families[static_cast<size_t>(draw_.Between(0, static_cast<int64_t>(families.size()) - 1))]);
    config.tie_word_embeddings = draw_.Chance(50);
    path_ = ::testing::TempDir() + "/sharded_weights_" + std::to_string(GetParam());
    std::filesystem::remove_all(path_);
    ASSERT_TRUE(WriteRandomModel(config, {}, path_).ok());
    directory_ = OpenModelDirectory(path_).value();
    const int64_t ep = config.experts && draw_.Chance(50) ? tp : 1;  // of eight experts
    shard_ = MakeModelShard(config, {draw_.Between(0, tp - 1), tp, draw_.Between(0, pp - 1), pp, ep}).value();
    dtype_ = draw_.Of<at::ScalarType>({at::kFloat, at::kDouble, at::kBFloat16});
    ranks_ = draw_.Between(2, 5);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  Weights Load(const StateOptions& states) const {
    auto weights = LoadWeights(directory_, shard_, dtype_, at::kCPU, states);
    EXPECT_TRUE(weights.ok()) << weights.status();
    return *std::move(weights);
  }

  Draw draw_;
  std::string path_;
  ModelDirectory directory_;
  ModelShard shard_;
  at::ScalarType dtype_ = at::kFloat;
  int64_t ranks_ = 2;
};

// Each element has one owner, which has its weight and its master; put together in a slot, the parts are the weights.
TEST_P(ShardedWeightsTest, PartsAreTheWholeWeights) {
  const Weights whole = Load({});
  std::vector<Weights> ranks;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const v1::OptimizerResidency residency = rank % 2 == 0 ? v1::DEVICE : v1::HOST;
    ranks.push_back(Load({residency, {rank, ranks_, /*shard_parameters=*/true}}));
  }
  const OptimizerShards shards = ShardsOf(ranks[0], ranks_);
  std::vector<int64_t> owned(whole.parameters.size());
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const Weights& own = ranks[static_cast<size_t>(rank)];
    for (const ParameterRange& r : shards.owned(rank)) {
      const Parameter &part = own.at(static_cast<int>(r.parameter)), &of = whole.at(static_cast<int>(r.parameter));
      owned[static_cast<size_t>(r.parameter)] += r.count;
      ASSERT_EQ(part.weight_shard.numel(), r.count) << part.name;
      EXPECT_TRUE(part.WeightElements(r.begin, r.count).equal(Parameter::Elements(of.weight, r.begin, r.count)));
      EXPECT_TRUE(part.MasterElements(r.begin, r.count).equal(of.MasterElements(r.begin, r.count))) << part.name;
    }
  }
  const Weights& first = ranks[0];
  for (size_t unit = 0; unit < first.unit_buffers.size(); ++unit) {
    std::vector<at::Tensor> parts;
    for (const Weights& own : ranks) parts.push_back(own.unit_buffers[unit].own_weights);
    at::Tensor(first.unit_buffers[unit].weights).copy_(at::cat(parts));
    const auto end = unit + 1 < first.unit_begins.size() ? static_cast<size_t>(first.unit_begins[unit + 1])
                                                         : first.parameters.size();
    for (auto p = static_cast<size_t>(first.unit_begins[unit]); p < end; ++p) {
      EXPECT_EQ(owned[p], whole.parameters[p].weight.numel()) << whole.parameters[p].name;
      EXPECT_TRUE(first.parameters[p].weight.equal(whole.parameters[p].weight)) << whole.parameters[p].name;
    }
  }
}

// Weights that are only read have neither gradients nor states.
TEST_P(ShardedWeightsTest, FrozenOnesHaveNoGradients) {
  const auto frozen = LoadFrozenWeights(directory_, shard_, dtype_, at::kCPU, {1, ranks_, true});
  ASSERT_TRUE(frozen.ok()) << frozen.status();
  const Weights trained = Load({v1::DEVICE, {1, ranks_, /*shard_parameters=*/true}});
  for (size_t p = 0; p < frozen->parameters.size(); ++p) {
    EXPECT_TRUE(frozen->parameters[p].weight_shard.equal(trained.parameters[p].weight_shard));
    EXPECT_FALSE(frozen->parameters[p].grad.defined() || frozen->parameters[p].exp_avg.defined());
  }
}

// While sums of all units live, gradients land in them, each in its shape and none over another; afterwards in the
// slots.
TEST_P(ShardedWeightsTest, GradientSumsTakeThePlaceOfTheSlots) {
  Weights weights = Load({v1::DEVICE, {0, ranks_, /*shard_parameters=*/true}});
  const Weights slots = weights;
  {
    const GradientSums sums(weights);
    double value = 0;
    for (Parameter& p : weights.parameters) p.grad.fill_(++value);
    value = 0;
    for (size_t i = 0; i < weights.parameters.size(); ++i) {
      const Parameter& p = weights.parameters[i];
      EXPECT_TRUE((p.grad == ++value).all().item<bool>()) << p.name << " has another one's gradients";
      EXPECT_EQ(p.grad.sizes(), p.weight.sizes()) << p.name;
      EXPECT_FALSE(p.grad.is_alias_of(slots.parameters[i].grad)) << p.name;
    }
    for (size_t unit = 0; unit < weights.unit_buffers.size(); ++unit) {
      EXPECT_EQ(slots.unit_buffers[unit].gradients.abs().max().item<double>(), 0);
      EXPECT_GT(weights.unit_buffers[unit].gradients.abs().max().item<double>(), 0);
    }
  }
  for (size_t i = 0; i < weights.parameters.size(); ++i) {
    const at::Tensor &now = weights.parameters[i].grad, &before = slots.parameters[i].grad;
    EXPECT_TRUE(now.data_ptr() == before.data_ptr() && now.sizes() == before.sizes()) << weights.parameters[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ShardedWeightsTest, ::testing::Range(0, 30));

}  // namespace
}  // namespace stemma::testing
