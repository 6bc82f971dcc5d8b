// A rank's weights are its boxes of the model's: drawn models, written to disk and loaded by every rank of a drawn
// mesh.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/model/model_init.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/tensors.h"
#include "worker/model/weights_export.h"
#include "worker/model/weights_io.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

// The box of a whole tensor; a vector has one column.
at::Tensor Cut(const at::Tensor& whole, const TensorBox& box) {
  const at::Tensor rows = whole.slice(0, box.row_begin, box.row_end);
  return whole.dim() == 1 ? rows : rows.slice(1, box.column_begin, box.column_end);
}

class WeightsShardTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    random_.seed(static_cast<uint32_t>(GetParam()));
    tp_ = Draw(1, 3);
    pp_ = Draw(1, 3);
    const int64_t kv_heads = tp_ * Draw(1, 2);
    ModelConfig config = SyntheticModel({.hidden = 2 * Draw(2, 10),
                                         .layers = pp_ + Draw(0, 2),
                                         .heads = kv_heads * Draw(1, 2),
                                         .kv_heads = kv_heads,
                                         .head_size = 4,
                                         .ffn = tp_ * Draw(1, 9),
                                         .vocab = tp_ + Draw(1, 30)});
    const auto families = Families();
    config.SetFamily(families[static_cast<size_t>(Draw(0, static_cast<int64_t>(families.size()) - 1))]);
    config.tie_word_embeddings = Draw(0, 1) == 1;
    path_ = ::testing::TempDir() + "/weights_shard_" + std::to_string(GetParam());
    std::filesystem::remove_all(path_);
    ASSERT_TRUE(WriteRandomModel(config, {}, path_).ok());
    auto directory = OpenModelDirectory(path_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = *directory;
  }

  void TearDown() override { std::filesystem::remove_all(path_); }

  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

  Weights Load(const ModelShard& shard) const {
    auto weights = LoadWeights(directory_, shard, at::kFloat, at::kCPU, {});
    EXPECT_TRUE(weights.ok()) << weights.status();
    return *std::move(weights);
  }

  std::vector<Weights> LoadShards() const {
    std::vector<Weights> shards;
    for (int64_t pp = 0; pp < pp_; ++pp) {
      for (int64_t tp = 0; tp < tp_; ++tp) {
        const auto shard = MakeModelShard(directory_.config, {tp, tp_, pp, pp_});
        EXPECT_TRUE(shard.ok()) << shard.status();
        shards.push_back(Load(*shard));
      }
    }
    return shards;
  }

  std::mt19937 random_;
  int64_t tp_ = 1, pp_ = 1;
  std::string path_;
  ModelDirectory directory_;
};

TEST_P(WeightsShardTest, LoadsItsBoxesOfTheModel) {
  const Weights whole = Load(WholeModel(directory_.config));
  for (const Weights& shard : LoadShards()) {
    for (const HfTensor& tensor : shard.hf_tensors) {
      EXPECT_TRUE(shard.MasterSlice(tensor).equal(Cut(whole.MasterSlice(whole.hf(tensor.name)), tensor.box)))
          << tensor.name;
    }
  }
}

TEST_P(WeightsShardTest, NormsOfTheRanksAddUpToTheModels) {
  Weights whole = Load(WholeModel(directory_.config));
  Random random(static_cast<uint64_t>(GetParam()));
  for (Parameter& p : whole.parameters) p.grad.copy_(random.Normal(p.grad.sizes()));
  double sum = 0, sum_of_everything = 0;
  for (const Weights& shard : LoadShards()) {
    for (const HfTensor& tensor : shard.hf_tensors) {
      shard.GradSlice(tensor).copy_(Cut(whole.GradSlice(whole.hf(tensor.name)), tensor.box));
    }
    sum += GradNormSquared(shard.parameters, NormRanges(shard));
    sum_of_everything += GradNormSquared(shard.parameters, AllRanges(shard.parameters));
  }
  const double expected = GradNormSquared(whole.parameters, NormRanges(whole));
  EXPECT_NEAR(sum / expected, 1, 1e-12);  // fp64 sums in another order
  const bool copies = tp_ > 1 || (pp_ > 1 && directory_.config.tie_word_embeddings);
  EXPECT_EQ(sum_of_everything > expected * (1 + 1e-9), copies) << "a rank that counts copies fails";
}

// A rank that owns a part of the optimizer's states has the masters of that part, and all weights.
TEST_P(WeightsShardTest, RanksHaveTheMastersThatTheyOwn) {
  const auto shard = MakeModelShard(directory_.config, {tp_ - 1, tp_, pp_ - 1, pp_});
  ASSERT_TRUE(shard.ok()) << shard.status();
  const int64_t ranks = Draw(2, 5);
  const auto whole = LoadWeights(directory_, *shard, at::kBFloat16, at::kCPU, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const OptimizerShards shards(ElementsOf(whole->parameters), ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const v1::OptimizerResidency residency = rank % 2 == 0 ? v1::DEVICE : v1::HOST;
    const auto part = LoadWeights(directory_, *shard, at::kBFloat16, at::kCPU, {residency, rank, ranks});
    ASSERT_TRUE(part.ok()) << part.status();
    for (size_t i = 0; i < part->parameters.size(); ++i) {
      EXPECT_TRUE(part->parameters[i].weight.equal(whole->parameters[i].weight)) << part->parameters[i].name;
    }
    for (const ParameterRange& r : shards.owned(rank)) {
      const Parameter &a = part->at(static_cast<int>(r.parameter)), &b = whole->at(static_cast<int>(r.parameter));
      EXPECT_TRUE(a.MasterElements(r.begin, r.count).equal(b.MasterElements(r.begin, r.count))) << a.name;
    }
  }
}

// What a rank does not hold would be written as it was loaded.
TEST_P(WeightsShardTest, AnExportOfAPartIsOurBug) {
  if (tp_ * pp_ == 1) return;
  const std::vector<Weights> shards = LoadShards();
  EXPECT_DEATH((void)WeightsExport::Make(shards.back(), directory_, std::nullopt), "an export takes");
}

INSTANTIATE_TEST_SUITE_P(Seeds, WeightsShardTest, ::testing::Range(1, 31));

}  // namespace
}  // namespace stemma::testing
