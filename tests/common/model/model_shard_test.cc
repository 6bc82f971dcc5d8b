// Boxes of all ranks tile every tensor of every family, for drawn models and meshes; what cannot be cut evenly is
// refused.
#include "common/model/model_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/model/families.h"
#include "tests/testing/whole_model.h"

namespace stemma {
namespace {

using ::testing::HasSubstr;
using testing::WholeModel;

struct Mesh {
  int64_t tp = 1, pp = 1, ep = 1;
};

class ModelShardTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    random_.seed(static_cast<uint32_t>(GetParam()));
    const std::vector<Family> families(Families().begin(), Families().end());
    config_.SetFamily(families[static_cast<size_t>(Draw(0, static_cast<int64_t>(families.size()) - 1))]);
    mesh_ = {Draw(1, 4), Draw(1, 4)};
    if (config_.experts) {
      mesh_.ep = Draw(1, 4);
      mesh_.tp = mesh_.ep * Draw(1, 3);
      config_.experts = Experts{.count = mesh_.ep * Draw(1, 3), .per_token = 1};
    }
    config_.num_kv_heads = mesh_.tp * Draw(1, 2);
    // Where there are fewer K/V heads than ranks, some ranks hold the same one.
    if (Draw(0, 2) == 0) config_.num_kv_heads = mesh_.tp % 2 == 0 ? mesh_.tp / 2 : 1;
    config_.num_heads = std::lcm(config_.num_kv_heads, mesh_.tp) * Draw(1, 3);
    config_.head_size = 2 * Draw(1, 8);
    config_.hidden_size = Draw(3, 40);
    config_.ffn_size = mesh_.tp * Draw(1, 20);
    config_.num_layers = mesh_.pp + Draw(0, 5);
    config_.rms_norm_eps = 1e-6;
    config_.vocab_size = mesh_.tp + Draw(0, 50);  // a vocabulary need not divide
    config_.tie_word_embeddings = Draw(0, 1) == 1;
  }

  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

  std::vector<ModelShard> Shards() const {
    std::vector<ModelShard> shards;
    for (int64_t pp = 0; pp < mesh_.pp; ++pp) {
      for (int64_t tp = 0; tp < mesh_.tp; ++tp) {
        auto shard = MakeModelShard(config_, {tp, mesh_.tp, pp, mesh_.pp, mesh_.ep});
        EXPECT_TRUE(shard.ok()) << shard.status();
        shards.push_back(*shard);
      }
    }
    return shards;
  }

  std::mt19937 random_;
  Mesh mesh_;
  ModelConfig config_;
};

// How often each element of a tensor is held, and counted in the norm.
struct Counts {
  std::vector<int> held, counted;
};

TEST_P(ModelShardTest, EveryElementIsHeldAndCountedAsItsCutSays) {
  const std::vector<ModelShard> shards = Shards();
  for (const TensorSpec& tensor : ModelTensors(config_)) {
    const int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    Counts counts{std::vector<int>(static_cast<size_t>(tensor.shape[0] * columns)),
                  std::vector<int>(static_cast<size_t>(tensor.shape[0] * columns))};
    for (const ModelShard& shard : shards) {
      const std::optional<TensorBox> box = BoxOf(tensor, shard);
      if (!box.has_value()) continue;
      for (int64_t row = box->row_begin; row < box->row_end; ++row) {
        for (int64_t column = box->column_begin; column < box->column_end; ++column) {
          ++counts.held[static_cast<size_t>(row * columns + column)];
          counts.counted[static_cast<size_t>(row * columns + column)] += PlacementOf(tensor, shard).counts_in_norm;
        }
      }
    }
    const bool on_two_stages = tensor.role == TensorRole::kEmbedding && config_.tie_word_embeddings && mesh_.pp > 1;
    const int64_t of_tp = tensor.cut == TensorCut::kReplicated ? mesh_.tp
                          : tensor.cut == TensorCut::kKvColumn ? shards.front().kv_replicas()
                                                               : 1;
    const int copies = static_cast<int>(of_tp) * (on_two_stages ? 2 : 1);
    EXPECT_THAT(counts.held, ::testing::Each(copies)) << tensor.name;
    EXPECT_THAT(counts.counted, ::testing::Each(1)) << tensor.name;
  }
}

// A rank's tensors are those of a model with the rank's own sizes, but for the vocabulary.
TEST_P(ModelShardTest, LocalTensorsAreThoseOfTheLocalModel) {
  for (const ModelShard& shard : Shards()) {
    std::map<TensorRole, std::vector<std::vector<int64_t>>> expected, actual;
    for (const TensorSpec& tensor : ModelTensors(shard.LocalConfig())) {
      if (tensor.layer >= 0) expected[tensor.role].push_back(tensor.shape);
    }
    for (const LocalTensor& tensor : LocalTensors(shard)) {
      if (tensor.spec.layer >= 0) actual[tensor.spec.role].push_back(tensor.spec.shape);
      EXPECT_GE(tensor.spec.layer, tensor.spec.layer < 0 ? -1 : shard.layer_begin);
    }
    EXPECT_EQ(actual, expected);
  }
}

// Ranks that follow each other have columns of the same experts, and their sets experts that follow each other.
TEST_P(ModelShardTest, ARankHasColumnsOfItsExperts) {
  if (!config_.experts) return;
  for (const ModelShard& shard : Shards()) {
    const int64_t of_set = mesh_.tp / mesh_.ep, set = shard.place.tp_rank / of_set;
    const int64_t held = config_.experts->count / mesh_.ep, columns = config_.ffn_size / of_set;
    std::map<int64_t, int64_t> tensors;  // of each expert
    for (const LocalTensor& tensor : LocalTensors(shard)) {
      if (tensor.spec.expert < 0) continue;
      ++tensors[tensor.spec.expert];
      EXPECT_THAT(tensor.spec.name, HasSubstr(".experts." + std::to_string(tensor.spec.expert) + "."));
      const TensorBox& box = tensor.box;
      const bool is_down = tensor.spec.role == TensorRole::kDown;
      EXPECT_EQ(is_down ? box.column_begin : box.row_begin, shard.place.tp_rank % of_set * columns);
      EXPECT_EQ(is_down ? box.columns() : box.rows(), columns);
      EXPECT_EQ(is_down ? box.rows() : box.columns(), config_.hidden_size);
    }
    const int64_t layers = shard.layer_end - shard.layer_begin;
    EXPECT_EQ(tensors.size(), static_cast<size_t>(held));
    for (const auto& [expert, count] : tensors) {
      EXPECT_EQ(expert / held, set);
      EXPECT_EQ(count, 3 * layers);
    }
  }
}

TEST_P(ModelShardTest, OneExpertStandsForThoseOfARank) {
  for (const ModelShard& shard : Shards()) {
    int64_t all = 0, by_one = 0;
    for (const LocalTensor& tensor : LocalTensors(shard)) all += tensor.elements();
    const std::vector<LocalTensor> of_one = LocalTensorsOfOneExpert(shard);
    for (const LocalTensor& tensor : of_one) by_one += tensor.elements();
    EXPECT_EQ(by_one, all);
    for (const LocalTensor& tensor : of_one) {  // by the name and the box of one that it has
      const auto box = BoxOf(tensor.spec, shard);
      ASSERT_TRUE(box.has_value()) << tensor.spec.name;
      EXPECT_EQ(tensor.box.rows(), tensor.spec.shape[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelShardTest, ::testing::Range(1, 81));

ModelConfig EightHeads() {
  ModelConfig config;
  config.SetFamily(*FindFamily("llama"));
  config.rms_norm_eps = 1e-6;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_size = 16;
  config.hidden_size = 64;
  config.ffn_size = 96;
  config.num_layers = 3;
  config.vocab_size = 100;
  return config;
}

TEST(ModelShardErrorTest, WhatCannotBeCutIsRefusedByName) {
  const auto problem = [](ModelConfig config, const ShardPlace& place) {
    const auto shard = MakeModelShard(config, place);
    EXPECT_EQ(shard.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(shard.status().message());
  };
  EXPECT_THAT(problem(EightHeads(), {0, 3}), HasSubstr("tp: 3 ranks cannot share the model's 8 attention heads"));
  ModelConfig few = EightHeads();
  few.num_kv_heads = 3;
  few.num_heads = 6;
  EXPECT_THAT(problem(few, {0, 2}), HasSubstr("tp: the model's 3 K/V heads and 2 ranks do not divide one another"));
  few.rms_norm_eps = 0;
  EXPECT_THAT(problem(few, {0, 3}), HasSubstr("rms_norm_eps is 0"));
  ModelConfig narrow = EightHeads();
  narrow.ffn_size = 97;
  EXPECT_THAT(problem(narrow, {0, 2}), HasSubstr("97 FFN columns"));
  EXPECT_THAT(problem(EightHeads(), {0, 1, 0, 4}), HasSubstr("pp: 4 stages are more than the model's 3 layers"));
  EXPECT_THAT(problem(EightHeads(), {2, 2}), HasSubstr("tp: rank 2 of 2"));
  EXPECT_THAT(problem(EightHeads(), {0, 0}), HasSubstr("tp: rank 0 of 0"));
  EXPECT_THAT(problem(EightHeads(), {.tp_size = 2, .ep_size = 0}), HasSubstr("ep: rank 0 of 0"));
  EXPECT_THAT(problem(EightHeads(), {.tp_size = 4, .ep_size = 2}), HasSubstr("ep: 2, but the model has no experts"));
  ModelConfig experts = EightHeads();
  experts.experts = Experts{.count = 6};
  EXPECT_THAT(problem(experts, {.tp_size = 4, .ep_size = 4}),
              HasSubstr("ep: the model's 6 experts cannot be dealt to 4 sets of ranks evenly; choose a divisor of 6"));
  EXPECT_THAT(problem(experts, {.tp_size = 2, .ep_size = 3}), HasSubstr("ep: 3 does not divide tp, 2"));
  experts.ffn_size = 33;
  EXPECT_THAT(problem(experts, {.tp_size = 4, .ep_size = 2}),
              HasSubstr("ep: the 2 ranks of each of 2 sets cannot share an expert's 33 FFN columns evenly; choose tp / "
                        "ep a divisor of 33"));
}

TEST(ModelShardErrorTest, OneRankHoldsEverything) {
  const ModelShard whole = WholeModel(EightHeads());
  for (const TensorSpec& tensor : ModelTensors(EightHeads())) {
    EXPECT_EQ(BoxOf(tensor, whole), (TensorBox{0, tensor.shape[0], 0, tensor.shape.size() > 1 ? tensor.shape[1] : 1}));
    const Placement placement = PlacementOf(tensor, whole);
    EXPECT_TRUE(placement.counts_in_norm && !placement.partial_over_tp && !placement.partial_over_first_and_last_stage);
  }
}

}  // namespace
}  // namespace stemma
