// Which bytes of which file each rank writes, against a plain count of elements: drawn models, dtypes and ranks.
#include "worker/checkpoint/checkpoint_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
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

// The element that each place of the files must hold: of which parameter, counted through all its tensors in the order
// of the model's table.
using Element = std::pair<int, int64_t>;
std::map<std::string, std::vector<Element>> ElementsOfTensors(const Weights& weights) {
  std::map<std::string, std::vector<Element>> elements;
  std::map<int, int64_t> next;
  for (const HfTensor& tensor : weights.hf_tensors) {
    const Parameter& p = weights.at(tensor.parameter);
    const int64_t count = (tensor.row_end - tensor.row_begin) * (p.weight.numel() / p.weight.size(0));
    for (int64_t i = 0; i < count; ++i) elements[tensor.name].emplace_back(tensor.parameter, next[tensor.parameter]++);
  }
  return elements;
}

TEST_P(CheckpointLayoutTest, EveryByteHasOneWriterAndTheRightElement) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Draws draw(static_cast<uint32_t>(GetParam()));
  const ModelConfig config = DrawModel(draw);
  Write(config, DrawInit(draw));
  const auto elements_of = ElementsOfTensors(MakeWeights(WholeModel(config), at::kFloat, at::kCPU));
  const bool fp64 = draw(0, 1) == 1;
  const int64_t element_bytes = fp64 ? 8 : 4;
  const std::vector<StateFile> files = StateFiles(directory_, fp64 ? Dtype::kF64 : Dtype::kF32);
  const Weights weights = MakeWeights(WholeModel(config), fp64 ? at::kDouble : at::kBFloat16, at::kCPU);
  const OptimizerShards shards(ElementsOf(weights.parameters), draw(1, 5), draw(1, 3) * draw(1, 3000));

  std::map<std::string, std::map<uint64_t, Element>> written;  // by file and place
  for (int64_t rank = 0; rank < shards.ranks(); ++rank) {
    const std::vector<FileShare> shares = MakeShares(files, weights, shards.owned(rank), rank == 0);
    int64_t bytes = 0;
    for (const FileShare& share : shares) {
      EXPECT_EQ(share.front.empty(), rank != 0);
      uint64_t end = share.front.size();
      for (const StatePiece& piece : share.pieces) {
        EXPECT_GE(piece.offset, end) << "pieces ascend";
        EXPECT_EQ(piece.bytes_before, bytes);
        bytes += piece.count * element_bytes;
        for (int64_t i = 0; i < piece.count; ++i) {
          const uint64_t place = piece.offset + static_cast<uint64_t>(i * element_bytes);
          const Element element{static_cast<int>(piece.parameter), piece.begin + i};
          EXPECT_TRUE(written[share.name].emplace(place, element).second) << share.name << " at " << place;
        }
        end = piece.offset + static_cast<uint64_t>(piece.count * element_bytes);
      }
    }
    EXPECT_EQ(PieceBytes(shares, element_bytes), bytes);
  }
  ASSERT_EQ(files.size(), 3 * directory_.shards.size());
  for (const StateFile& file : files) {
    std::map<uint64_t, Element> expected;
    for (const TensorEntry& tensor : file.tensors) {
      uint64_t place = tensor.begin;
      for (const Element& element : elements_of.at(tensor.name)) {
        expected[place] = element;
        place += static_cast<uint64_t>(element_bytes);
      }
      EXPECT_EQ(place, tensor.end) << tensor.name;
    }
    EXPECT_EQ(written[file.name], expected) << file.name;
    EXPECT_EQ(file.tensors.front().begin, file.header.size());
    // The format's own reader finds the tensors where the header says.
    const auto parsed = safetensors::ParseHeader(file.header, file.bytes());
    ASSERT_THAT(parsed, IsOk());
    EXPECT_EQ(parsed->metadata.at("format"), "pt");
    ASSERT_EQ(parsed->tensors.size(), file.tensors.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Random, CheckpointLayoutTest, ::testing::Range(1, 25));

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

// Ranges of a file are whole rows: a matrix that is cut by columns has no place in it yet.
TEST_F(CheckpointLayoutTest, ACutByColumnsIsFound) {
  const ModelConfig config = SyntheticModel({.hidden = 8, .layers = 1, .ffn = 6, .vocab = 20});
  Write(config, {});
  const auto shard = MakeModelShard(config, {.tp_rank = 1, .tp_size = 2});
  ASSERT_THAT(shard, IsOk());
  const Weights weights = MakeWeights(*shard, at::kFloat, at::kCPU);
  const std::vector<StateFile> files = StateFiles(directory_, Dtype::kF32);
  EXPECT_DEATH(MakeShares(files, weights, AllRanges(weights.parameters), true), "is cut by columns");
}

}  // namespace
}  // namespace stemma::testing
