// Parameters of a model, and which of their rows each Hugging Face tensor is.
#include "worker/model/weights.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/whole_model.h"

namespace stemma::worker {
namespace {

using ::testing::ElementsAre;
using testing::WholeModel;

ModelConfig SmallModel(const std::string& model_type, bool tied) {
  ModelConfig config = testing::SyntheticModel({.hidden = 24, .layers = 2, .head_size = 6, .ffn = 20, .vocab = 30});
  config.SetFamily(*FindFamily(model_type));
  config.tie_word_embeddings = tied;
  return config;
}

std::vector<std::string> NamesOfParameters(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const Parameter& p : MakeWeights(WholeModel(config), at::kFloat, at::kCPU).parameters) names.push_back(p.name);
  return names;
}

// The order is the optimizer's and that of sums over all parameters: another one would change bits.
TEST(WeightsTest, ParametersStandInTheOrderOfAForward) {
  ModelConfig qwen2 = SmallModel("qwen2", /*tied=*/false);
  qwen2.num_layers = 1;
  EXPECT_THAT(NamesOfParameters(qwen2),
              ElementsAre("embedding", "layers.0.norm1", "layers.0.qkv", "layers.0.qkv_bias", "layers.0.o",
                          "layers.0.norm2", "layers.0.gate_up", "layers.0.down", "final_norm", "head"));
  EXPECT_THAT(NamesOfParameters(SmallModel("qwen3", /*tied=*/true)),
              ElementsAre("embedding", "layers.0.norm1", "layers.0.qkv", "layers.0.q_norm", "layers.0.k_norm",
                          "layers.0.o", "layers.0.norm2", "layers.0.gate_up", "layers.0.down", "layers.1.norm1",
                          "layers.1.qkv", "layers.1.q_norm", "layers.1.k_norm", "layers.1.o", "layers.1.norm2",
                          "layers.1.gate_up", "layers.1.down", "final_norm"));
  ModelConfig moe = SmallModel("qwen3_moe", /*tied=*/true);
  moe.num_layers = 1;
  EXPECT_THAT(NamesOfParameters(moe), ElementsAre("embedding", "layers.0.norm1", "layers.0.qkv", "layers.0.q_norm",
                                                  "layers.0.k_norm", "layers.0.o", "layers.0.norm2", "layers.0.router",
                                                  "layers.0.gate_up", "layers.0.down", "final_norm"));
}

TEST(WeightsTest, EveryRowOfAParameterHasOneHuggingFaceName) {
  for (const Family& family : Families()) {
    for (const bool tied : {false, true}) {
      const ModelConfig config = SmallModel(std::string(family.model_type), tied);
      const Weights weights = MakeWeights(WholeModel(config), at::kFloat, at::kCPU);
      const std::vector<TensorSpec> tensors = ModelTensors(config);
      ASSERT_EQ(weights.hf_tensors.size(), tensors.size());
      std::map<int, int64_t> rows;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const HfTensor& tensor = weights.hf_tensors[i];
        EXPECT_EQ(tensor.name, tensors[i].name);
        EXPECT_EQ(tensor.row_begin, rows[tensor.parameter]) << tensor.name;
        rows[tensor.parameter] = tensor.row_end;
        EXPECT_EQ(weights.GradSlice(tensor).sizes().vec(), tensors[i].shape) << tensor.name;
      }
      for (size_t p = 0; p < weights.parameters.size(); ++p) {
        EXPECT_EQ(rows[static_cast<int>(p)], weights.parameters[p].grad.size(0)) << weights.parameters[p].name;
      }
      EXPECT_EQ(weights.head == weights.embedding, tied);
    }
  }
}

TEST(WeightsTest, RolesAreFoundByLayer) {
  const Weights weights = MakeWeights(WholeModel(SmallModel("qwen2", /*tied=*/false)), at::kFloat, at::kCPU);
  const auto name = [&](int index) { return weights.at(index).name; };
  EXPECT_EQ(name(weights.layers[1][TensorRole::kGateUp]), "layers.1.gate_up");
  EXPECT_EQ(name(weights.layers[0][TensorRole::kQkvBias]), "layers.0.qkv_bias");
  EXPECT_EQ(weights.layers[0][TensorRole::kQNorm], -1) << "the family has none";
  EXPECT_EQ(name(weights.embedding), "embedding");
  EXPECT_EQ(name(weights.final_norm), "final_norm");
  EXPECT_EQ(name(weights.head), "head");
}

}  // namespace
}  // namespace stemma::worker
