// The ideals against the numbers of the paper's setting, which were computed apart from this code.
#include "tests/gpu/bench/ideals.h"

#include <gtest/gtest.h>

#include <vector>

namespace stemma::testing {
namespace {

struct Case {
  int64_t prompt, response;
  std::vector<double> plain;  // at N = 2, 4, 8, 16, 32, 128
};

const Case kCases[] = {{2048, 10240, {1.072, 1.112, 1.133, 1.143, 1.149, 1.153}},
                       {6144, 6144, {1.282, 1.492, 1.625, 1.701, 1.742, 1.774}},
                       {8192, 4096, {1.441, 1.850, 2.155, 2.349, 2.459, 2.549}},
                       {10240, 2048, {1.665, 2.496, 3.325, 3.987, 4.428, 4.829}}};
constexpr int64_t kRollouts[] = {2, 4, 8, 16, 32, 128};

TEST(IdealsTest, WithoutPruningTheyAreThoseOfThePaper) {
  const ModelConfig model = LlamaConfig(/*tiny=*/false);
  for (const Case& c : kCases) {
    for (size_t i = 0; i < c.plain.size(); ++i) {
      const GroupSize size = {c.prompt, c.response, kRollouts[i]};
      EXPECT_NEAR(PlainFlops(model, size).ratio(), c.plain[i], 6e-4) << size.Text();  // half of the last digit
    }
  }
}

TEST(IdealsTest, PruningBothSidesLowersThemAlittle) {
  const ModelConfig model = LlamaConfig(/*tiny=*/false);
  const std::vector<double> pruned = {1.659, 2.473, 3.278, 3.914, 4.336, 4.716};
  for (size_t i = 0; i < pruned.size(); ++i) {
    EXPECT_NEAR(PrunedFlops(model, {10240, 2048, kRollouts[i]}).ratio(), pruned[i], 2e-3) << kRollouts[i];
  }
}

TEST(IdealsTest, ADenseTrajectoryIsCountedAsPublished) {
  const GroupFlops one = PlainFlops(LlamaConfig(/*tiny=*/false), {1, 12288, 1});
  EXPECT_NEAR(one.dense / 1e12, 514.6 + 118.8 + 38.7, 1);  // linear, attention, head on all tokens
}

TEST(IdealsTest, FewerLayersMakeTheHeadCountForMore) {
  ModelConfig few = LlamaConfig(/*tiny=*/false);
  few.num_layers = 8;
  const GroupSize size = {10240, 2048, 16};
  EXPECT_LT(PrunedFlops(few, size).ratio(), PrunedFlops(LlamaConfig(/*tiny=*/false), size).ratio());
  EXPECT_NEAR(PrunedFlops(few, {10240, 2048, 1}).ratio(), 1, 1e-9);
}

}  // namespace
}  // namespace stemma::testing
