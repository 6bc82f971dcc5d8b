#include "common/model/model_directory.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "common/base/json.h"
#include "common/model/model_init.h"
#include "gtest/gtest.h"
#include "tests/common/model/small_configs.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;
using ::nlohmann::json;
using testing::Invalid;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

class ModelDirectoryTest : public ::testing::Test {
 protected:
  std::string Make(const ModelConfig& config, uint64_t max_shard_bytes = 0) {
    fs::remove_all(folder_ / "model");
    EXPECT_THAT(WriteRandomModel(config, {.max_shard_bytes = max_shard_bytes}, folder_ / "model"), IsOk());
    return folder_ / "model";
  }

  // Changes the JSON file of a fresh model and opens it.
  absl::StatusOr<ModelDirectory> OpenWith(const std::string& file, uint64_t max_shard_bytes,
                                          const std::function<void(json&)>& change) {
    const std::string model = Make(SmallLlama(), max_shard_bytes);
    json content = json::parse(Read(model + "/" + file));
    change(content);
    Write(model + "/" + file, content.dump());
    return OpenModelDirectory(model);
  }

  // Rewrites model.safetensors with its tensors changed; the data is zeros.
  absl::StatusOr<ModelDirectory> OpenWithTensors(
      const ModelConfig& config, const std::function<void(std::vector<safetensors::TensorEntry>&)>& change) {
    const std::string model = Make(config);
    auto tensors = safetensors::ReadHeader(model + "/model.safetensors")->tensors;
    change(tensors);
    const std::string header = safetensors::MakeHeader(tensors, {});
    Write(model + "/model.safetensors", header + std::string(tensors.back().end - header.size(), '\0'));
    return OpenModelDirectory(model);
  }

  TempFolder folder_;
};

constexpr char kIndex[] = "model.safetensors.index.json";

TEST_F(ModelDirectoryTest, SingleAndShardedModelsOpen) {
  for (const ModelConfig& config : SmallConfigs()) {
    const auto single = OpenModelDirectory(Make(config));
    ASSERT_THAT(single, IsOk());
    EXPECT_EQ(single->shards.size(), 1u);
    EXPECT_FALSE(single->has_index);
    EXPECT_EQ(single->config.num_parameters(), config.num_parameters());
    const auto sharded = OpenModelDirectory(Make(config, 8192));
    ASSERT_THAT(sharded, IsOk());
    EXPECT_GT(sharded->shards.size(), 2u);
    EXPECT_TRUE(sharded->has_index);
    EXPECT_TRUE(sharded->other_files.contains(kIndex));
  }
}

TEST_F(ModelDirectoryTest, TokenizerAndGenerationFilesAreFoundAndOthersAreNot) {
  const std::string model = Make(SmallLlama());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "notes.txt"}) {
    Write(model + "/" + name, "{}");
  }
  const auto directory = OpenModelDirectory(model);
  ASSERT_THAT(directory, IsOk());
  EXPECT_TRUE(directory->other_files.contains("tokenizer.json"));
  EXPECT_TRUE(directory->other_files.contains("config.json"));
  EXPECT_EQ(directory->other_files.size(), 4u);
}

TEST_F(ModelDirectoryTest, AHubCachesSnapshotOfLinksOpens) {
  const std::string model = Make(SmallLlama(), 8192);
  const std::string blobs = folder_ / "blobs", snapshot = folder_ / "snapshot";
  fs::create_directory(blobs);
  fs::create_directory(snapshot);
  int blob = 0;
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string name = std::to_string(blob++);
    fs::rename(entry.path(), blobs + "/" + name);
    fs::create_symlink("../blobs/" + name, snapshot + "/" + entry.path().filename().string());
  }
  fs::create_directory_symlink(snapshot, folder_ / "main");
  const auto directory = OpenModelDirectory(folder_ / "main");
  ASSERT_THAT(directory, IsOk());
  for (const WeightFile& shard : directory->shards) {
    EXPECT_FALSE(fs::is_symlink(shard.path)) << shard.path;
    EXPECT_NE(shard.path.find("/blobs/"), std::string::npos);
  }
}

TEST_F(ModelDirectoryTest, WhatIsMissingIsNamed) {
  const auto not_found = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr(text));
  };
  EXPECT_THAT(OpenModelDirectory(folder_ / "none"), not_found("none"));
  std::string model = Make(SmallLlama());
  EXPECT_THAT(OpenModelDirectory(model + "/config.json"), not_found("not a directory"));
  fs::remove(model + "/model.safetensors");
  EXPECT_THAT(OpenModelDirectory(model), not_found("has neither model.safetensors nor"));
  fs::create_symlink("gone", model + "/model.safetensors");
  EXPECT_THAT(OpenModelDirectory(model), not_found("model.safetensors"));
  fs::remove(model + "/config.json");
  EXPECT_THAT(OpenModelDirectory(model), not_found("config.json"));
  model = Make(SmallLlama(), 8192);
  fs::remove(model + "/" + OpenModelDirectory(model)->shards[1].file_name);
  EXPECT_THAT(OpenModelDirectory(model), not_found("model-00002-of-"));
}

// transformers would apply it, where peft is installed.
TEST_F(ModelDirectoryTest, AnAdapterBesideTheWeightsIsRefused) {
  const std::string model = Make(SmallLlama());
  std::ofstream(model + "/adapter_config.json") << "{}";
  EXPECT_THAT(OpenModelDirectory(model),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("adapter_config.json: an adapter is not applied")));
}

TEST_F(ModelDirectoryTest, ConfigErrorsNameFileAndField) {
  EXPECT_THAT(OpenWith("config.json", 0, [](json& config) { config["model_type"] = "gpt2"; }),
              Invalid("model/config.json: model_type: \"gpt2\" is not supported"));
}

TEST_F(ModelDirectoryTest, ATruncatedShardIsNamed) {
  const std::string model = Make(SmallLlama());
  fs::resize_file(model + "/model.safetensors", fs::file_size(model + "/model.safetensors") - 1);
  EXPECT_THAT(OpenModelDirectory(model), Invalid("model.safetensors: tensors end at"));
}

TEST_F(ModelDirectoryTest, AFifoInPlaceOfAShardDoesNotHoldUs) {
  const std::string model = Make(SmallLlama());
  fs::remove(model + "/model.safetensors");
  ASSERT_EQ(mkfifo((model + "/model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(OpenModelDirectory(model), Invalid("not a regular file"));
}

TEST_F(ModelDirectoryTest, TensorsMustBeTheConfigs) {
  using Tensors = std::vector<safetensors::TensorEntry>;
  EXPECT_THAT(OpenWithTensors(SmallLlama(), [](Tensors&) {}), IsOk());
  EXPECT_THAT(OpenWithTensors(SmallLlama(), [](Tensors& tensors) { tensors.erase(tensors.begin() + 1); }),
              Invalid("model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\" is missing"));
  EXPECT_THAT(OpenWithTensors(SmallLlama(),
                              [](Tensors& tensors) { tensors.push_back({.name = "score.weight", .shape = {1}}); }),
              Invalid("tensor \"score.weight\" does not belong"));
  ModelConfig moe = SmallLlama();
  moe.SetFamily(*FindFamily("qwen3_moe"));
  moe.rope_scaling.reset();
  EXPECT_THAT(OpenWithTensors(moe, [](Tensors&) {}), IsOk());
  for (const char* joined : {"gate_up_proj", "down_proj"}) {
    const std::string name = std::string("model.layers.0.mlp.experts.") + joined;
    EXPECT_THAT(OpenWithTensors(moe, [&](Tensors& tensors) { tensors.push_back({.name = name, .shape = {1}}); }),
                Invalid("experts are read one by one"));
  }
  EXPECT_THAT(OpenWithTensors(SmallLlama(), [](Tensors& tensors) { tensors[0].shape[0] += 1; }),
              Invalid("tensor \"model.embed_tokens.weight\" has shape [98,16], the config's is [97,16]"));
  EXPECT_THAT(OpenWithTensors(SmallLlama(), [](Tensors& tensors) { tensors[2].dtype = safetensors::Dtype::kF8E4M3; }),
              Invalid("has dtype F8_E4M3"));
}

TEST_F(ModelDirectoryTest, ATiedHeadAndOldRotaryBuffersAreIgnored) {
  using Tensors = std::vector<safetensors::TensorEntry>;
  const auto add = [](const std::string& name, std::vector<int64_t> shape) {
    return [name, shape](Tensors& tensors) {
      tensors.push_back({.name = name, .dtype = safetensors::Dtype::kF32, .shape = shape});
    };
  };
  EXPECT_THAT(OpenWithTensors(SmallLlama(), add("model.layers.0.self_attn.rotary_emb.inv_freq", {4})), IsOk());
  ASSERT_TRUE(SmallQwen3().tie_word_embeddings);
  EXPECT_THAT(OpenWithTensors(SmallQwen3(), add("lm_head.weight", {97, 16})), IsOk());
  EXPECT_THAT(OpenWithTensors(SmallQwen3(), add("lm_head.weight", {97, 17})), Invalid("does not belong"));
}

TEST_F(ModelDirectoryTest, IndexValuesAreFileNamesNeverPaths) {
  for (const char* name : {"../model-00001.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""}) {
    EXPECT_THAT(OpenWith(kIndex, 8192, [&](json& index) { index["weight_map"]["model.norm.weight"] = name; }),
                Invalid("weight_map[\"model.norm.weight\"]: \""))
        << name;
  }
  EXPECT_THAT(OpenWith(kIndex, 8192, [](json& index) { index["weight_map"]["model.norm.weight"] = 3; }),
              Invalid("is not a string"));
}

TEST_F(ModelDirectoryTest, TheIndexMustAgreeWithItsShards) {
  EXPECT_THAT(OpenWith(kIndex, 8192, [](json& index) { index.erase("weight_map"); }),
              Invalid("weight_map: is missing"));
  EXPECT_THAT(OpenWith(kIndex, 8192, [](json& index) { index["weight_map"] = json::object(); }), Invalid("is empty"));
  EXPECT_THAT(OpenWith(kIndex, 8192, [](json& index) { index["weight_map"].erase("model.norm.weight"); }),
              Invalid("tensor \"model.norm.weight\" is not in"));
  EXPECT_THAT(OpenWith(kIndex, 8192,
                       [](json& index) {
                         json& map = index["weight_map"];
                         map["model.norm.weight"] = map["model.embed_tokens.weight"];
                       }),
              Invalid("tensor \"model.norm.weight\" is in another file"));
  EXPECT_THAT(OpenWith(kIndex, 8192,
                       [](json& index) {
                         json& map = index["weight_map"];
                         map["model.extra"] = map["model.norm.weight"];
                       }),
              Invalid("weight_map[\"model.extra\"]"));
}

}  // namespace
}  // namespace stemma
