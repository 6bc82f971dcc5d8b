// The arithmetic of common/cost/state_shards.h, by which the server plans, against the lists by which ranks divide
// their states: random models and numbers of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/cost/state_shards.h"
#include "common/cost/state_slabs.h"
#include "common/model/model_tensors.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/whole_model.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

v1::Mesh DpMesh(int64_t ranks) {
  v1::Mesh mesh;
  mesh.set_dp(static_cast<uint32_t>(ranks));
  return mesh;
}

class ShardBytesTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  ShardBytesTest() : random_(GetParam()) {
    const int64_t scale = int64_t{1} << Between(0, 5);  // from less than a bucket to many
    model_.SetFamily(Families()[static_cast<size_t>(Between(0, static_cast<int64_t>(Families().size()) - 1))]);
    if (model_.experts) model_.experts = Experts{Between(1, 9), 1};
    model_.vocab_size = Between(16, 1000) * scale;
    model_.hidden_size = Between(4, 100) * scale;
    model_.num_layers = Between(1, 12);
    model_.num_kv_heads = Between(1, 4);
    model_.num_heads = model_.num_kv_heads * Between(1, 4);
    model_.head_size = 2 * Between(4, 64);
    model_.ffn_size = Between(8, 300) * scale;
    model_.max_positions = 4096;
    model_.tie_word_embeddings = Between(0, 1) == 1;
    ranks_ = Between(2, 9);
  }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

  // Returns the elements of every tensor, those of all experts as one; `fused`: of every parameter, in the worker's
  // order. Tensors of one layer and role are one: q, k and v, gate and up.
  std::vector<int64_t> Elements(bool fused) const {
    std::vector<int64_t> elements;
    std::map<std::tuple<int, int64_t, TensorRole>, int64_t> parameters;
    for (const TensorSpec& tensor : TensorsOfOneExpert(model_)) {
      const int64_t count =
          std::accumulate(tensor.shape.begin(), tensor.shape.end(), tensor.copies, std::multiplies<int64_t>());
      const int part = tensor.layer >= 0 ? 1 : tensor.role == TensorRole::kEmbedding ? 0 : 2;
      parameters[{part, tensor.layer, tensor.role}] += count;
      elements.push_back(count);
    }
    if (!fused) return elements;
    elements.clear();
    for (const auto& [place, count] : parameters) elements.push_back(count);
    return elements;
  }

  static int64_t MostOwned(const OptimizerShards& shards) {
    int64_t most = 0;
    for (int64_t rank = 0; rank < shards.ranks(); ++rank) {
      int64_t owned = 0;
      for (const ParameterRange& range : shards.owned(rank)) owned += range.count;
      most = std::max(most, owned);
    }
    return most;
  }
  static int64_t LongestPart(const OptimizerShards& shards) {
    int64_t longest = 0;
    for (const ShardRound& round : shards.Rounds()) longest = std::max(longest, round.part_elements);
    return longest;
  }

  std::mt19937 random_;
  ModelConfig model_;
  int64_t ranks_ = 2;
};

TEST_P(ShardBytesTest, ARankOwnsNoMoreThanThePlanCounts) {
  const StateShare share = LargestShare(WholeModel(model_), ranks_);
  for (const bool fused : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "seed " << GetParam() << ", ranks " << ranks_ << ", fused " << fused);
    const std::vector<int64_t> elements = Elements(fused);
    const OptimizerShards shards(elements, ranks_);
    // Every parameter and every bucket is rounded up to a unit; fused ones are rounded once, and cut other buckets.
    const int64_t rounding = kStateSlabUnit * 2 * static_cast<int64_t>(elements.size());
    EXPECT_NEAR(static_cast<double>(share.elements), static_cast<double>(MostOwned(shards)),
                static_cast<double>(rounding));
    EXPECT_NEAR(static_cast<double>(share.part_elements), static_cast<double>(LongestPart(shards)),
                static_cast<double>(rounding));
    if (fused) continue;
    EXPECT_GE(share.elements, MostOwned(shards));
    EXPECT_EQ(share.part_elements, LongestPart(shards));
    EXPECT_EQ(share.in_flight, std::min<int64_t>(2, static_cast<int64_t>(shards.Rounds().size())));
  }
}

TEST_P(ShardBytesTest, StatesAreDividedAndNothingElseIs) {
  for (const RunDtype dtype : {RunDtype::kFp32, RunDtype::kBf16, RunDtype::kFp64}) {
    SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
    const StateBytes one = StateBytesOf(model_, dtype), rank = StateBytesOf(model_, dtype, DpMesh(ranks_));
    EXPECT_EQ(rank.optimizer, LargestShare(WholeModel(model_), ranks_).elements * OptimizerBytes(dtype));
    EXPECT_EQ(rank.weights, one.weights);
    EXPECT_EQ(rank.gradients, one.gradients);
    EXPECT_EQ(rank.tables, one.tables);
    for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
      EXPECT_LE(rank.clipped(residency), one.clipped(residency));
    }
    EXPECT_EQ(rank.total(), rank.weights + rank.gradients + rank.optimizer + rank.tables + rank.exchange);
    EXPECT_EQ(one.exchange, 0);
    EXPECT_GT(rank.exchange, 0);
  }
}

TEST_P(ShardBytesTest, ATensorParallelRankHoldsNoMoreThanThePlanCounts) {
  v1::Mesh mesh;
  mesh.set_tp(static_cast<uint32_t>(ranks_));
  model_.rms_norm_eps = 1e-6;
  model_.num_heads *= ranks_;
  model_.num_kv_heads *= Between(0, 1) == 1 ? ranks_ : 1;
  if (model_.num_kv_heads % ranks_ != 0) model_.num_kv_heads = 1;  // which all ranks hold
  model_.ffn_size *= ranks_;
  if (model_.experts && Between(0, 1) == 1) {
    model_.experts->count *= ranks_;
    mesh.set_ep(static_cast<uint32_t>(ranks_));
  }
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam() << ", ranks " << ranks_);
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const auto shard = MakeModelShard(model_, {.tp_rank = rank, .tp_size = ranks_, .ep_size = EpSize(mesh)});
    ASSERT_TRUE(shard.ok()) << shard.status();
    int64_t elements = 0;
    for (const LocalTensor& tensor : LocalTensors(*shard)) elements += tensor.box.rows() * tensor.box.columns();
    most = std::max(most, elements);
  }
  const ModelShard largest = LargestShard(model_, mesh);
  EXPECT_EQ(NumParameters(largest), most);
  // Both norms of a layer, and of its queries and keys; the router.
  const int64_t router = model_.experts ? model_.experts->count * model_.hidden_size : 0;
  const int64_t partial = 2 * model_.hidden_size + (model_.qk_norm ? 2 * model_.head_size : 0) + router;
  EXPECT_EQ(PartialGradientElements(largest), partial);
  EXPECT_EQ(PartialGradientElements(WholeModel(model_)), 0);
  const StateBytes state = StateBytesOf(model_, RunDtype::kBf16, mesh);
  EXPECT_EQ(state.weights, most * 2);
  EXPECT_EQ(state.optimizer, most * 12);
  EXPECT_EQ(state.exchange, partial * 4);
  EXPECT_EQ(state.tables, StateBytesOf(model_, RunDtype::kBf16).tables) << "of all positions on every rank";
}

INSTANTIATE_TEST_SUITE_P(Drawn, ShardBytesTest, ::testing::Range(0U, 60U));

TEST(ShardBytesOfARunTest, ARunSaysHowManyRanksDivideThem) {
  ModelConfig model;
  model.SetFamily(*FindFamily("llama"));
  model.vocab_size = 32000;
  model.hidden_size = 2048;
  model.num_layers = 16;
  model.num_heads = model.num_kv_heads = 16;
  model.head_size = 128;
  model.ffn_size = 5632;
  model.max_positions = 4096;
  v1::RunConfig run;
  run.set_dtype("bf16");
  const auto whole = static_cast<double>(StateBytesOf(model, run).optimizer);
  EXPECT_EQ(StateBytesOf(model, run).optimizer, model.num_parameters() * 12) << "moments and masters";
  for (const uint32_t ranks : {2U, 3U, 8U}) {
    run.mutable_mesh()->set_dp(ranks);
    EXPECT_NEAR(static_cast<double>(StateBytesOf(model, run).optimizer) * ranks / whole, 1, 0.001);
    // Two rounds of 32 MiB: all parts as they leave, as they come, and the own one.
    EXPECT_NEAR(static_cast<double>(StateBytesOf(model, run).exchange), (2 + 1.0 / ranks) * (64 << 20), 1 << 12);
  }
}

}  // namespace
}  // namespace stemma::testing
