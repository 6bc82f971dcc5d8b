// Which bytes of which file each rank writes, against a plain count of elements: drawn models, dtypes and ranks.
#include "worker/checkpoint/checkpoint_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/testing/added_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/checkpoint/saved_checkpoint.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

using safetensors::Dtype;
using safetensors::TensorEntry;
using ::testing::ElementsAre;

class CheckpointLayoutTest : public ::testing::TestWithParam<int> {
 protected:
  void Write(const ModelConfig& config, const ModelInitOptions& options) {
    ASSERT_THAT(WriteRandomModel(config, options, folder_ / "model"), IsOk());
    Open();
  }
  void Open() {
    auto directory = OpenModelDirectory(folder_ / "model");
    ASSERT_THAT(directory, IsOk());
    directory_ = *directory;
  }

  const TempFolder folder_;
  ModelDirectory directory_;
};

// An element of a Hugging Face tensor, row by row.
using Element = std::pair<std::string, int64_t>;

// What each element of a rank's parameters is, counted through the rows and columns of its boxes.
std::vector<std::vector<Element>> ElementsOfParameters(const Weights& weights, const ModelConfig& config) {
  std::map<std::string, int64_t> columns;
  for (const TensorSpec& spec : ModelTensors(config)) columns[spec.name] = spec.shape.size() > 1 ? spec.shape[1] : 1;
  std::vector<std::vector<Element>> elements(weights.parameters.size());
  for (const HfTensor& tensor : weights.hf_tensors) {
    for (int64_t row = tensor.box.row_begin; row < tensor.box.row_end; ++row) {
      for (int64_t column = tensor.box.column_begin; column < tensor.box.column_end; ++column) {
        elements[static_cast<size_t>(tensor.parameter)].emplace_back(tensor.name, row * columns[tensor.name] + column);
      }
    }
  }
  return elements;
}

// Adds to `written` what a rank's shares hold, by file and place.
using Written = std::map<std::string, std::map<uint64_t, Element>>;
void AddShares(const std::vector<FileShare>& shares, const std::vector<std::vector<Element>>& elements,
               uint64_t element_bytes, int64_t experts, Written& written) {
  int64_t bytes = 0;
  for (const FileShare& share : shares) {
    uint64_t end = share.front.size();
    std::map<int, int> pieces_of_parameter;
    for (const StatePiece& piece : share.pieces) {
      EXPECT_GE(piece.bytes.begin, end) << "pieces ascend";
      EXPECT_EQ(piece.bytes_before, bytes);
      EXPECT_EQ(piece.bytes.bytes(), static_cast<uint64_t>(piece.count) * element_bytes);
      bytes += static_cast<int64_t>(piece.bytes.bytes());
      for (int64_t i = 0; i < piece.count; ++i) {
        const uint64_t place = piece.bytes.PlaceOf(static_cast<uint64_t>(i) * element_bytes);
        const Element& element =
            elements[static_cast<size_t>(piece.parameter)].at(static_cast<size_t>(piece.begin + i));
        EXPECT_TRUE(written[share.name].emplace(place, element).second) << share.name << " at " << place;
      }
      end = piece.bytes.end();
      // q, k and v, or gate and up, lie in one piece each; a box of columns in three. Each expert has its own.
      EXPECT_LE(++pieces_of_parameter[piece.parameter], 3 * experts) << "a matrix is no list of its rows";
    }
  }
  EXPECT_EQ(PieceBytes(shares), bytes);
}

TEST_P(CheckpointLayoutTest, EveryByteHasOneWriterAndTheRightElement) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Draws draw(static_cast<uint32_t>(GetParam()));
  const int64_t tp = draw(1, 4);
  const ModelConfig config = DrawModel(draw, tp);
  const int64_t ep = DrawEp(draw, config, tp);
  Write(config, DrawInit(draw));
  const bool fp64 = draw(0, 1) == 1;
  const uint64_t element_bytes = fp64 ? 8 : 4;
  const int64_t dp = draw(1, 5), bucket_elements = draw(1, 3) * draw(1, 3000);
  const std::vector<StateFile> files = StateFiles(directory_, fp64 ? Dtype::kF64 : Dtype::kF32);

  Written written;
  for (int64_t tp_rank = 0; tp_rank < tp; ++tp_rank) {
    const auto shard = MakeModelShard(config, {.tp_rank = tp_rank, .tp_size = tp, .ep_size = ep});
    ASSERT_THAT(shard, IsOk());
    const Weights weights = MakeWeights(*shard, fp64 ? at::kDouble : at::kBFloat16, at::kCPU);
    const auto elements = ElementsOfParameters(weights, config);
    const OptimizerShards shards(ElementsOf(weights.parameters), dp, bucket_elements);
    for (int64_t dp_rank = 0; dp_rank < dp; ++dp_rank) {
      const bool first = dp_rank == 0 && tp_rank == 0;
      const std::vector<FileShare> shares = MakeShares(files, weights, shards.owned(dp_rank), first);
      for (const FileShare& share : shares) {
        EXPECT_EQ(share.front.empty(), !first);
        EXPECT_FALSE(share.front.empty() && share.pieces.empty()) << "a part of nothing";
      }
      AddShares(shares, elements, element_bytes, config.experts ? config.experts->count : 1, written);
    }
  }
  ASSERT_EQ(files.size(), 3 * directory_.shards.size());
  for (const StateFile& file : files) {
    std::map<uint64_t, Element> expected;
    for (const TensorEntry& tensor : file.tensors) {
      for (uint64_t place = tensor.begin; place < tensor.end; place += element_bytes) {
        expected[place] = {tensor.name, static_cast<int64_t>((place - tensor.begin) / element_bytes)};
      }
    }
    EXPECT_TRUE(written[file.name] == expected) << file.name;
    EXPECT_EQ(file.tensors.front().begin, file.header.size());
    // The format's own reader finds the tensors where the header says.
    const auto parsed = safetensors::ParseHeader(file.header, file.bytes());
    ASSERT_THAT(parsed, IsOk());
    EXPECT_EQ(parsed->metadata.at("format"), "pt");
    ASSERT_EQ(parsed->tensors.size(), file.tensors.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Random, CheckpointLayoutTest, ::testing::Range(1, 41));

// What old programs leave in files and the model does not use: a checkpoint holds what an update changes.
TEST_F(CheckpointLayoutTest, HoldsTheTensorsOfTheModelOnly) {
  ModelConfig config = SyntheticModel({.hidden = 8, .layers = 2, .ffn = 6, .vocab = 20});
  config.tie_word_embeddings = true;
  Write(config, {.max_shard_bytes = 9'000});
  ASSERT_GE(directory_.shards.size(), 2u);
  const std::string inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq";
  AddTensor(directory_.shards[0].path, {inv_freq, Dtype::kF32, {4}});
  AddTensor(directory_.shards[1].path, {"lm_head.weight", Dtype::kF32, {20, 8}});
  // And a file with nothing else.
  std::vector<TensorEntry> lone = {{"model.layers.1.self_attn.rotary_emb.inv_freq", Dtype::kF32, {4}}};
  ASSERT_THAT(WriteFile(folder_ / "model/old.safetensors", safetensors::MakeHeader(lone, {}) + std::string(16, '\0')),
              IsOk());
  auto index = nlohmann::json::parse(*ReadFile(folder_ / "model/model.safetensors.index.json", kTestFileBytesMax));
  index["weight_map"][inv_freq] = directory_.shards[0].file_name;
  index["weight_map"]["lm_head.weight"] = directory_.shards[1].file_name;
  index["weight_map"][lone[0].name] = "old.safetensors";
  ASSERT_THAT(WriteFile(folder_ / "model/model.safetensors.index.json", index.dump()), IsOk());
  const size_t used_files = directory_.shards.size();
  Open();
  ASSERT_EQ(directory_.shards.size(), used_files + 1);

  const std::vector<StateFile> files = StateFiles(directory_, Dtype::kF32);
  EXPECT_EQ(files.size(), 3 * used_files);
  const auto made = nlohmann::json::parse(CheckpointIndex(files));
  std::map<std::string, std::string> file_of_tensor;
  uint64_t bytes = 0;
  for (const TensorSpec& spec : ModelTensors(config)) {
    file_of_tensor[spec.name] = index["weight_map"][spec.name];
    bytes += static_cast<uint64_t>(c10::multiply_integers(spec.shape)) * sizeof(float);
  }
  EXPECT_EQ(made["weight_map"], nlohmann::json(file_of_tensor));
  EXPECT_EQ(made["metadata"]["total_size"], bytes) << "of the weights, without moments";
}

TEST_F(CheckpointLayoutTest, NamesOfMomentsAreThoseOfTheirFile) {
  Write(SyntheticModel({.hidden = 8, .layers = 1, .ffn = 6, .vocab = 20}), {});
  std::vector<std::string> names;
  for (const StateFile& file : StateFiles(directory_, Dtype::kF32)) names.push_back(file.name);
  EXPECT_THAT(
      names, ElementsAre("model.safetensors", "optim/exp_avg-model.safetensors", "optim/exp_avg_sq-model.safetensors"));
}

// A pipeline's first and last stage both hold a tied embedding, and all tensor-parallel ranks a norm: one writes it.
TEST_F(CheckpointLayoutTest, WhatSeveralRanksHoldIsWrittenOnce) {
  ModelConfig config = SyntheticModel({.hidden = 8, .layers = 2, .ffn = 6, .vocab = 20});
  config.tie_word_embeddings = true;
  Write(config, {});
  const std::vector<StateFile> files = StateFiles(directory_, Dtype::kF32);
  int64_t elements = 0;
  for (const int64_t stage : {0, 1}) {
    const auto shard = MakeModelShard(config, {.pp_rank = stage, .pp_size = 2});
    ASSERT_THAT(shard, IsOk());
    const Weights weights = MakeWeights(*shard, at::kFloat, at::kCPU);
    for (const FileShare& share : MakeShares(files, weights, AllRanges(weights.parameters), stage == 0)) {
      for (const StatePiece& piece : share.pieces) elements += piece.count;
    }
  }
  EXPECT_EQ(elements, 3 * config.num_parameters());
}

}  // namespace
}  // namespace stemma::testing
