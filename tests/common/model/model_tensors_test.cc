#include "common/model/model_tensors.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/model/small_configs.h"

namespace stemma {
namespace {

using ::testing::ElementsAre;

// A model of any family whose heads, FFN columns and vocabulary rows can be halved.
ModelConfig RandomConfig(std::mt19937& random) {
  const auto draw = [&](int64_t max) { return 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(max)); };
  ModelConfig config = SmallLlama();
  config.SetFamily(Families()[random() % Families().size()]);
  config.num_layers = draw(3);
  config.hidden_size = draw(40);
  config.num_kv_heads = 2 * draw(3);
  config.num_heads = config.num_kv_heads * draw(3);
  config.head_size = 2 * draw(8);
  config.ffn_size = 2 * draw(30);
  config.vocab_size = 2 * draw(50);
  config.tie_word_embeddings = random() % 2 == 0;
  if (config.experts) config.experts->count = draw(6);
  return config;
}

TEST(ModelTensorsTest, TheNumberOfParametersIsTheSumOverTensors) {
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    const ModelConfig config = RandomConfig(random);
    int64_t sum = 0;
    for (const TensorSpec& tensor : ModelTensors(config)) {
      sum += std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    }
    EXPECT_EQ(sum, config.num_parameters()) << "seed 3, model " << i;
  }
}

TEST(ModelTensorsTest, NamesAreThoseOfHuggingFaceInTheOrderOfItsModules) {
  ModelConfig config = SmallQwen2();
  config.num_layers = 1;
  std::vector<std::string> names;
  for (const TensorSpec& tensor : ModelTensors(config)) names.push_back(tensor.name);
  EXPECT_THAT(names,
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.k_proj.weight",
                          "model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.o_proj.weight",
                          "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                          "model.layers.0.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight",
                          "model.layers.0.post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"));
}

TEST(ModelTensorsTest, AFamilysFlagsDecideItsTensors) {
  const auto count = [](const ModelConfig& config, TensorKind kind) {
    const std::vector<TensorSpec> tensors = ModelTensors(config);
    return std::count_if(tensors.begin(), tensors.end(), [&](const TensorSpec& t) { return t.kind == kind; });
  };
  for (const ModelConfig& config : SmallConfigs()) {
    EXPECT_EQ(count(config, TensorKind::kBias), (config.qkv_bias ? 3 : 0) * config.num_layers) << config.model_type;
    EXPECT_EQ(count(config, TensorKind::kNorm), (config.qk_norm ? 4 : 2) * config.num_layers + 1) << config.model_type;
    const int64_t of_mlps = config.experts ? 3 * config.experts->count + 1 : 3;
    EXPECT_EQ(count(config, TensorKind::kMatrix), (4 + of_mlps) * config.num_layers + 2) << config.model_type;
  }
}

TEST(ModelTensorsTest, EachExpertHasTensorsOfItsOwnInParametersThatAllShare) {
  ModelConfig config = SmallLlama();
  config.SetFamily(*FindFamily("qwen3_moe"));
  config.num_layers = 2;
  config.experts = Experts{.count = 2, .per_token = 1};
  std::vector<std::string> names, of_gate_up;
  for (const TensorSpec& tensor : ModelTensors(config)) {
    if (tensor.layer != 1) continue;
    if (tensor.name.find(".mlp.") != std::string::npos) names.push_back(tensor.name);
    if (tensor.role == TensorRole::kGateUp) of_gate_up.push_back(tensor.name);
  }
  const std::string mlp = "model.layers.1.mlp.";
  EXPECT_THAT(names,
              ElementsAre(mlp + "gate.weight", mlp + "experts.0.gate_proj.weight", mlp + "experts.0.up_proj.weight",
                          mlp + "experts.0.down_proj.weight", mlp + "experts.1.gate_proj.weight",
                          mlp + "experts.1.up_proj.weight", mlp + "experts.1.down_proj.weight"));
  EXPECT_THAT(of_gate_up, ElementsAre(mlp + "experts.0.gate_proj.weight", mlp + "experts.0.up_proj.weight",
                                      mlp + "experts.1.gate_proj.weight", mlp + "experts.1.up_proj.weight"))
      << "an expert's rows of the parameter are its gate's and then its up's";
}

TEST(ModelTensorsTest, ATiedModelHasNoHeadOfItsOwn) {
  ModelConfig config = SmallLlama();
  EXPECT_EQ(ModelTensors(config).back().name, "lm_head.weight");
  EXPECT_FALSE(TiedHead(config).has_value());
  config.tie_word_embeddings = true;
  EXPECT_EQ(ModelTensors(config).back().name, "model.norm.weight");
  ASSERT_TRUE(TiedHead(config).has_value());
  EXPECT_EQ(TiedHead(config)->name, "lm_head.weight");
  EXPECT_EQ(TiedHead(config)->shape, ModelTensors(config).front().shape);
}

TEST(ModelTensorsTest, OneExpertStandsForAllThatAreLikeIt) {
  std::mt19937 random(6);
  for (int i = 0; i < 50; ++i) {
    const ModelConfig config = RandomConfig(random);
    using Place = std::tuple<int64_t, TensorRole, TensorCut>;
    std::map<Place, int64_t> all, one;
    for (const TensorSpec& t : ModelTensors(config)) {
      EXPECT_EQ(t.copies, 1) << t.name;
      all[{t.layer, t.role, t.cut}] += std::accumulate(t.shape.begin(), t.shape.end(), int64_t{1}, std::multiplies<>());
    }
    size_t listed = 0;
    for (const TensorSpec& t : TensorsOfOneExpert(config)) {
      one[{t.layer, t.role, t.cut}] += std::accumulate(t.shape.begin(), t.shape.end(), t.copies, std::multiplies<>());
      ++listed;
    }
    EXPECT_EQ(one, all) << "seed 6, model " << i;
    EXPECT_LE(listed, static_cast<size_t>(17 * config.num_layers)) << "whatever the number of experts";
  }
}

// Rows can only join in one matrix where they have as many columns.
TEST(ModelTensorsTest, TensorsOfOneParameterFitTogether) {
  std::mt19937 random(4);
  for (int i = 0; i < 50; ++i) {
    std::map<std::pair<int64_t, TensorRole>, TensorSpec> first;
    std::set<std::string> names;
    for (const TensorSpec& tensor : ModelTensors(RandomConfig(random))) {
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      const TensorSpec& other = first.emplace(std::pair(tensor.layer, tensor.role), tensor).first->second;
      const auto columns = [](const TensorSpec& t) { return std::vector<int64_t>(t.shape.begin() + 1, t.shape.end()); };
      EXPECT_EQ(columns(tensor), columns(other)) << tensor.name;
      EXPECT_EQ(tensor.kind, other.kind) << tensor.name;
      const auto by_rows = [](const TensorSpec& t) {
        return t.cut == TensorCut::kColumn || t.cut == TensorCut::kKvColumn;
      };
      EXPECT_TRUE(tensor.cut == other.cut || (by_rows(tensor) && by_rows(other))) << tensor.name;
    }
  }
}

// What a rank of two holds is a model of half the heads, FFN columns and vocabulary: the shapes of that model are those
// of this one, halved in the dimension that the table cuts and nowhere else.
TEST(ModelTensorsTest, CutInTwoATensorIsThatOfAModelOfHalfTheSize) {
  std::mt19937 random(5);
  for (int i = 0; i < 50; ++i) {
    const ModelConfig config = RandomConfig(random);
    ModelConfig half = config;
    for (int64_t* size : {&half.num_heads, &half.num_kv_heads, &half.ffn_size, &half.vocab_size}) *size /= 2;
    const std::vector<TensorSpec> whole = ModelTensors(config), local = ModelTensors(half);
    ASSERT_EQ(whole.size(), local.size());
    for (size_t t = 0; t < whole.size(); ++t) {
      std::vector<int64_t> shape = whole[t].shape;
      if (whole[t].cut != TensorCut::kReplicated) shape.at(whole[t].cut == TensorCut::kRow ? 1 : 0) /= 2;
      EXPECT_EQ(local[t].shape, shape) << "seed 5, model " << i << ", " << whole[t].name;
    }
  }
}

TEST(FamiliesTest, ARowIsFoundByItsModelType) {
  std::set<std::string_view> types, architectures;
  for (const Family& family : Families()) {
    EXPECT_EQ(FindFamily(family.model_type), &family);
    EXPECT_TRUE(types.insert(family.model_type).second) << family.model_type;
    EXPECT_TRUE(architectures.insert(family.architecture).second) << family.architecture;
  }
  EXPECT_EQ(FindFamily("gpt2"), nullptr);
  EXPECT_EQ(FindFamily(""), nullptr);
}

}  // namespace
}  // namespace stemma
