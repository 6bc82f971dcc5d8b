// Which layers the stages of a pipeline have, against every way to cut the layers.
#include "common/model/stage_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "common/model/families.h"
#include "common/model/model_tensors.h"
#include "tests/testing/draw.h"

namespace stemma {
namespace {

ModelConfig DrawStagedModel(testing::Draw& draw) {
  ModelConfig config;
  const bool has_experts = draw.Chance(50);
  config.SetFamily(*FindFamily(has_experts ? "qwen3_moe" : "qwen3"));
  if (has_experts) config.experts = Experts{.count = draw.Between(2, 9), .per_token = draw.Between(1, 2)};
  config.num_kv_heads = draw.Between(1, 4);
  config.num_heads = config.num_kv_heads * draw.Between(1, 4);
  config.head_size = 8;
  config.hidden_size = 16 * draw.Between(1, 4);
  config.ffn_size = 24 * draw.Between(1, 8);
  config.num_layers = draw.Between(1, 9);
  config.vocab_size = draw.LogBetween(2, 20000);
  return config;
}

// The sizes of the matrices, of which only those of the layers and of the head are multiplied with a row.
struct Weights {
  double layer = 0, head = 0;
  explicit Weights(const ModelConfig& config) {
    for (const TensorSpec& tensor : ModelTensors(config)) {
      double size = tensor.shape.size() < 2 ? 0 : static_cast<double>(tensor.shape[0] * tensor.shape[1]);
      if (tensor.name.find(".experts.") != std::string::npos) {
        size *= static_cast<double>(config.experts->per_token) / static_cast<double>(config.experts->count);
      }
      if (tensor.layer == 0) layer += size;
      if (tensor.role == TensorRole::kHead) head += size;
    }
  }
  double Most(const std::vector<int64_t>& counts) const {
    double most = static_cast<double>(counts.back()) * layer + head;
    for (size_t stage = 0; stage + 1 < counts.size(); ++stage) {
      most = std::max(most, static_cast<double>(counts[stage]) * layer);
    }
    return most;
  }
};

// Calls f with every way to give each stage a layer at least.
void ForEachCut(int64_t layers, int64_t stages, std::vector<int64_t>& counts,
                const std::function<void(const std::vector<int64_t>&)>& f) {
  if (stages == 1) {
    counts.push_back(layers);
    f(counts);
    counts.pop_back();
    return;
  }
  for (int64_t own = 1; own <= layers - stages + 1; ++own) {
    counts.push_back(own);
    ForEachCut(layers - own, stages - 1, counts, f);
    counts.pop_back();
  }
}

TEST(StageLayersTest, TheMostThatAStageMultipliesIsTheLeastOfAllCuts) {
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t seed = testing::FirstSeed() + i;
    SCOPED_TRACE(seed);
    testing::Draw draw(seed);
    const ModelConfig config = DrawStagedModel(draw);
    const int64_t stages = draw.Between(1, std::min<int64_t>(5, config.num_layers));
    const std::vector<int64_t> begins = StageBegins(config, stages);
    ASSERT_EQ(begins.size(), static_cast<size_t>(stages) + 1);
    EXPECT_EQ(begins.front(), 0);
    EXPECT_EQ(begins.back(), config.num_layers);
    std::vector<int64_t> counts;
    for (size_t stage = 0; stage + 1 < begins.size(); ++stage) counts.push_back(begins[stage + 1] - begins[stage]);
    EXPECT_GE(*std::min_element(counts.begin(), counts.end()), 1);
    EXPECT_TRUE(std::is_sorted(counts.begin(), counts.end() - 1)) << "earlier stages hold more waves";
    const Weights weights(config);
    double least = std::numeric_limits<double>::infinity();
    std::vector<int64_t> cut;
    ForEachCut(config.num_layers, stages, cut,
               [&](const std::vector<int64_t>& other) { least = std::min(least, weights.Most(other)); });
    EXPECT_EQ(weights.Most(counts), least);
  }
}

TEST(StageLayersTest, AStageWithoutALayerIsABug) {
  ModelConfig config;
  config.num_layers = 2;
  EXPECT_DEATH(StageBegins(config, 3), "3 stages of 2 layers");
}

}  // namespace
}  // namespace stemma
