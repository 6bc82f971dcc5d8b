// The rounds of the simulated exchange against those in which workers exchange.
#include "server/simulation/state_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_slabs.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/whole_model.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

class DrawnExchangeTest : public ::testing::TestWithParam<uint32_t> {};

// Workers hold q, k and v as one parameter; so do these lists.
std::vector<int64_t> ParameterElements(const ModelShard& shard) {
  std::vector<LocalTensor> tensors = LocalTensors(shard);
  const auto place = [](const LocalTensor& tensor) {
    const bool last = tensor.spec.role >= TensorRole::kFinalNorm;
    return std::pair(last ? std::numeric_limits<int64_t>::max() : tensor.spec.layer, tensor.spec.role);
  };
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const LocalTensor& a, const LocalTensor& b) { return place(a) < place(b); });
  std::vector<int64_t> elements;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t count = tensors[i].box.rows() * tensors[i].box.columns();
    if (i > 0 && place(tensors[i]) == place(tensors[i - 1])) {
      elements.back() += count;
    } else {
      elements.push_back(count);
    }
  }
  return elements;
}

TEST_P(DrawnExchangeTest, RoundsAreThoseOfTheWorkers) {
  Draw draw(FirstSeed() + GetParam());
  const ModelConfig config = SyntheticModel({.hidden = 64 * draw.Between(4, 24),
                                             .layers = draw.Between(2, 12),
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_size = 64,
                                             .ffn = 512 * draw.Between(1, 8),
                                             .vocab = draw.Between(100, 30000)});
  const v1::Mesh mesh =
      MakeMesh({.pp = static_cast<uint32_t>(draw.Between(1, 2)), .tp = static_cast<uint32_t>(draw.Between(1, 2))});
  const int64_t ranks = draw.Between(2, 9);
  for (const ModelShard& shard : StageShards(config, mesh)) {
    const auto workers = worker::OptimizerShards(ParameterElements(shard), ranks).Rounds();
    const std::vector<StateRound> rounds = StateRoundsOf(shard, ranks);
    ASSERT_EQ(rounds.size(), workers.size()) << "STEMMA_SEED " << FirstSeed() + GetParam();
    int64_t ours = 0, theirs = 0;
    for (const StateRound& round : rounds) ours += round.part_elements;
    for (const worker::ShardRound& round : workers) theirs += round.part_elements;
    // Parts are cut at multiples of the slab unit, in each parameter.
    const auto slack = static_cast<int64_t>(workers.size()) * kStateSlabUnit * 16;
    EXPECT_NEAR(static_cast<double>(ours), static_cast<double>(theirs), static_cast<double>(slack));
    EXPECT_TRUE(std::is_sorted(rounds.begin(), rounds.end(), [](const StateRound& a, const StateRound& b) {
      return a.final_after < b.final_after;
    })) << "the head first, the embedding last";
    EXPECT_EQ(rounds.back().final_after, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DrawnExchangeTest, ::testing::Range(0u, 16u));

TEST(StateExchangeTest, OneRankExchangesNothing) {
  EXPECT_TRUE(StateRoundsOf(WholeModel(SyntheticModel({})), 1).empty());
}

// Three rounds of one second: the first begins at 2 s, when the slower rank has half of its backward behind it.
TEST(StateExchangeTest, RoundsBeginWhenTheirGradientsAreFinalOnAllRanks) {
  Rates rates;
  rates[kDataByte] = 1;
  const std::vector<StateRound> rounds = {{1, 0.5}, {1, 0.5}, {1, 1}};
  const std::vector<LastBackward> ranks = {{0, 1}, {1, 3}};
  const Reduction reduction = ReduceGradients(rounds, ranks, /*element_bytes=*/1, rates);
  EXPECT_EQ(reduction.wire_s, 3);
  EXPECT_EQ(reduction.end_s, 5);
  EXPECT_EQ(reduction.sent_bytes, 3);
  const std::vector<LastBackward> late = {{0, 1}, {1, 9}};
  EXPECT_EQ(ReduceGradients(rounds, late, 1, rates).end_s, 10) << "the last waits for the embedding";
  EXPECT_EQ(GatherWeights(rounds, 2, 1, rates).end_s, 3);
  EXPECT_EQ(GatherWeights(rounds, 3, 1, rates).sent_bytes, 6);
}

// Two rounds start together and their bytes follow each other; the third starts when the first has ended.
TEST(StateExchangeTest, TwoRoundsAreUnderWayAtOnce) {
  Rates rates;
  rates[kDataCollective] = 5;
  const std::vector<StateRound> rounds(3, {1, 1});
  EXPECT_EQ(GatherWeights(rounds, 2, 1, rates).end_s, 10);
  rates[kDataByte] = 2;
  EXPECT_EQ(GatherWeights(rounds, 2, 1, rates).end_s, 14) << "7, 9, and 7 + 5 + 2";
}

}  // namespace
}  // namespace stemma::testing
