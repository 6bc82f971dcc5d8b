// A rank's weights are its boxes of the model's: drawn models, written to disk and loaded by every rank of a drawn
// mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/model/model_init.h"
#include "tests/testing/added_tensors.h"
#include "tests/testing/backends.h"
#include "tests/testing/hf_slices.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/tensors.h"
#include "tests/testing/whole_model.h"
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
    tp_ = Draw(1, 4);
    pp_ = Draw(1, 3);
    // Fewer K/V heads than ranks, too: several hold the same one.
    const int64_t kv_heads = tp_ % 2 == 0 && Draw(0, 1) == 1 ? Draw(1, 2) : tp_ * Draw(1, 2);
    ModelConfig config = SyntheticModel({.hidden = 2 * Draw(2, 10),
                                         .layers = pp_ + Draw(0, 2),
                                         .heads = std::max(kv_heads, tp_) * Draw(1, 2),
                                         .kv_heads = kv_heads,
                                         .head_size = 4,
                                         .ffn = tp_ * Draw(1, 9),
                                         .vocab = tp_ + Draw(1, 30)});
    const auto families = Families();
    config.SetFamily(families[static_cast<size_t>(Draw(0, static_cast<int64_t>(families.size()) - 1))]);
    config.tie_word_embeddings = Draw(0, 1) == 1;
    if (config.experts) {
      while (tp_ % (ep_ = Draw(1, tp_)) != 0) continue;
      config.experts = Experts{.count = ep_ * Draw(1, 3), .per_token = 1};
    }
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
        const auto shard = MakeModelShard(directory_.config, {tp, tp_, pp, pp_, ep_});
        EXPECT_TRUE(shard.ok()) << shard.status();
        shards.push_back(Load(*shard));
      }
    }
    return shards;
  }

  std::mt19937 random_;
  int64_t tp_ = 1, pp_ = 1, ep_ = 1;
  std::string path_;
  ModelDirectory directory_;
};

TEST_P(WeightsShardTest, LoadsItsBoxesOfTheModel) {
  const Weights whole = Load(WholeModel(directory_.config));
  for (const Weights& shard : LoadShards()) {
    for (const HfTensor& tensor : shard.hf_tensors) {
      EXPECT_TRUE(MasterSlice(shard, tensor).equal(Cut(MasterSlice(whole, HfTensorOf(whole, tensor.name)), tensor.box)))
          << tensor.name;
    }
  }
}

// One rank at least has the element by which the head differs; the others load what they have of both.
TEST_P(WeightsShardTest, ATiedHeadThatIsNotTheEmbeddingIsRefused) {
  if (!directory_.config.tie_word_embeddings) GTEST_SKIP() << "not tied";
  const std::string file = path_ + "/model.safetensors", whole = *ReadFile(file, 64 << 20);
  AddTiedHead(file, safetensors::Dtype::kF32);
  directory_ = OpenModelDirectory(path_).value();
  LoadShards();
  ASSERT_TRUE(WriteFile(file, whole).ok());
  AddTiedHead(file, safetensors::Dtype::kF32,
              Draw(0, directory_.config.vocab_size * directory_.config.hidden_size - 1));
  directory_ = OpenModelDirectory(path_).value();
  int refused = 0;
  for (int64_t rank = 0; rank < tp_ * pp_; ++rank) {
    const auto shard = MakeModelShard(directory_.config, {rank % tp_, tp_, rank / tp_, pp_, ep_});
    const absl::Status loaded = LoadWeights(directory_, *shard, at::kFloat, at::kCPU, {}).status();
    const absl::Status frozen = LoadFrozenWeights(directory_, *shard, at::kFloat, at::kCPU).status();
    EXPECT_EQ(loaded, frozen);
    if (loaded.ok()) continue;
    ++refused;
    EXPECT_EQ(loaded.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(loaded.message()),
                ::testing::HasSubstr("\"lm_head.weight\": differs from model.embed_tokens."
                                     "weight, and config.json says that they are one"));
  }
  EXPECT_EQ(refused, 1);
}

TEST_P(WeightsShardTest, NormsOfTheRanksAddUpToTheModels) {
  Weights whole = Load(WholeModel(directory_.config));
  Random random(static_cast<uint64_t>(GetParam()));
  for (Parameter& p : whole.parameters) p.grad.copy_(random.Normal(p.grad.sizes()));
  double sum = 0, sum_of_everything = 0;
  for (const Weights& shard : LoadShards()) {
    for (const HfTensor& tensor : shard.hf_tensors) {
      shard.GradSlice(tensor).copy_(Cut(whole.GradSlice(HfTensorOf(whole, tensor.name)), tensor.box));
    }
    sum += GradNormSquared(TestBackend(), shard.parameters, NormRanges(shard));
    sum_of_everything += GradNormSquared(TestBackend(), shard.parameters, AllRanges(shard.parameters));
  }
  const double expected = GradNormSquared(TestBackend(), whole.parameters, NormRanges(whole));
  EXPECT_NEAR(sum / expected, 1, 1e-12);  // fp64 sums in another order
  const bool copies = tp_ > 1 || (pp_ > 1 && directory_.config.tie_word_embeddings);
  EXPECT_EQ(sum_of_everything > expected * (1 + 1e-9), copies) << "a rank that counts copies fails";
}

// A rank that owns a part of the optimizer's states has the masters of that part, and all weights.
TEST_P(WeightsShardTest, RanksHaveTheMastersThatTheyOwn) {
  const auto shard = MakeModelShard(directory_.config, {tp_ - 1, tp_, pp_ - 1, pp_, ep_});
  ASSERT_TRUE(shard.ok()) << shard.status();
  const int64_t ranks = Draw(2, 5);
  const auto whole = LoadWeights(directory_, *shard, at::kBFloat16, at::kCPU, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const OptimizerShards shards(ElementsOf(whole->parameters), ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const v1::OptimizerResidency residency = rank % 2 == 0 ? v1::DEVICE : v1::HOST;
    const auto part = LoadWeights(directory_, *shard, at::kBFloat16, at::kCPU, {residency, {rank, ranks}});
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

// Only bytes of a rank's boxes are read: a number that is not finite is found by the ranks that hold it, and by no
// other, and is named by its place in the whole tensor.
TEST_P(WeightsShardTest, ARankReadsItsBoxesOnly) {
  for (int turn = 0; turn < 4; ++turn) {
    const WeightFile& file = directory_.shards.front();
    const auto& tensors = file.header.tensors;
    const safetensors::TensorEntry& entry =
        tensors[static_cast<size_t>(Draw(0, static_cast<int64_t>(tensors.size()) - 1))];
    const int64_t columns = entry.shape.size() > 1 ? entry.shape[1] : 1;
    const int64_t row = Draw(0, entry.shape[0] - 1), column = Draw(0, columns - 1);
    const int64_t element_bytes = safetensors::DtypeBytes(entry.dtype);
    const std::string before = ReadFile(file.path, uint64_t{64} << 20).value();
    std::string content = before;
    const size_t place = entry.begin + static_cast<size_t>((row * columns + column) * element_bytes);
    std::fill_n(content.begin() + static_cast<ptrdiff_t>(place), element_bytes, '\xff');  // a NaN in every dtype
    ASSERT_TRUE(WriteFile(file.path, content).ok());
    const std::string text =
        entry.shape.size() > 1 ? absl::StrCat("[", row, ", ", column, "]") : absl::StrCat("[", row, "]");
    for (int64_t rank = 0; rank < tp_ * pp_; ++rank) {
      const auto shard = MakeModelShard(directory_.config, {rank % tp_, tp_, rank / tp_, pp_, ep_});
      const Weights weights = MakeWeights(*shard, at::kFloat, at::kCPU);
      const bool holds = std::any_of(weights.hf_tensors.begin(), weights.hf_tensors.end(), [&](const HfTensor& t) {
        return t.name == entry.name && row >= t.box.row_begin && row < t.box.row_end && column >= t.box.column_begin &&
               column < t.box.column_end;
      });
      const auto loaded = LoadWeights(directory_, *shard, at::kFloat, at::kCPU, {});
      EXPECT_EQ(loaded.ok(), !holds) << entry.name << " " << text << ", rank " << rank;
      if (!loaded.ok()) {
        EXPECT_THAT(std::string(loaded.status().message()),
                    ::testing::AllOf(::testing::HasSubstr(entry.name), ::testing::HasSubstr(text)));
      }
    }
    ASSERT_TRUE(WriteFile(file.path, before).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, WeightsShardTest, ::testing::Range(1, 31));

}  // namespace
}  // namespace stemma::testing
