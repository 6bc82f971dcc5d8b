#include "common/model/model_init.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/digest.h"
#include "common/base/random_values.h"
#include "common/model/model_directory.h"
#include "gtest/gtest.h"
#include "tests/common/model/small_configs.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using safetensors::Dtype;
using testing::FileSizeLimit;
using testing::Invalid;
using testing::IsOk;
using testing::TempFolder;

std::string DigestOfFile(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  Sha256 sha;
  sha.Update(content.str());
  return sha.FinishHex();
}

std::string WeightsDigest(const ModelConfig& config, const ModelInitOptions& options) {
  const TempFolder folder;
  EXPECT_THAT(WriteRandomModel(config, options, folder / "m"), IsOk());
  return DigestOfFile(folder / "m/model.safetensors");
}

// Made by this code on x86-64 with GCC 12; model_init_transformers_test.py makes the same values with Python's
// integers.
TEST(ModelInitTest, ASeedGivesTheSameBytesOnEveryMachine) {
  const auto digest = [](const ModelConfig& config, Dtype dtype) {
    return WeightsDigest(config, {.seed = 7, .dtype = dtype, .norm_std = 0.1}).substr(0, 16);
  };
  EXPECT_EQ(digest(SmallLlama(), Dtype::kF32), "6067d3fcc1ac30a7");
  EXPECT_EQ(digest(SmallQwen2(), Dtype::kBF16), "a065249d8c7b588e");
  EXPECT_EQ(digest(SmallQwen3(), Dtype::kF16), "c153755f8145434a");
  EXPECT_EQ(digest(SmallQwen3(), Dtype::kF64), "29943ed1a5315e3d");
}

TEST(ModelInitTest, AnotherSeedGivesOtherBytes) {
  EXPECT_NE(WeightsDigest(SmallLlama(), {.seed = 7}), WeightsDigest(SmallLlama(), {.seed = 8}));
}

TEST(ModelInitTest, TheConfigReadsBack) {
  for (const ModelConfig& config : SmallConfigs()) {
    const auto back = ParseModelConfig(ModelConfigJson(config));
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(ModelConfigJson(*back), ModelConfigJson(config));
    EXPECT_EQ(back->rope_scaling.has_value(), config.rope_scaling.has_value());
    EXPECT_EQ(back->qkv_bias, config.qkv_bias);
    EXPECT_EQ(back->qk_norm, config.qk_norm);
    EXPECT_EQ(back->experts, config.experts);
  }
}

TEST(ModelInitTest, ShardsDoNotChangeValuesAndKeepTheLimit) {
  const TempFolder folder;
  ASSERT_THAT(WriteRandomModel(SmallLlama(), {.max_shard_bytes = 7000}, folder / "m"), IsOk());
  ASSERT_THAT(WriteRandomModel(SmallLlama(), {}, folder / "one"), IsOk());
  const auto sharded = OpenModelDirectory(folder / "m"), one = OpenModelDirectory(folder / "one");
  ASSERT_THAT(sharded, IsOk());
  const auto bytes_of = [](const std::string& path, const safetensors::TensorEntry& tensor) {
    std::ifstream stream(path, std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(tensor.begin));
    std::string bytes(tensor.end - tensor.begin, '\0');
    stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  };
  std::map<std::string, std::string> expected;
  for (const auto& tensor : one->shards[0].header.tensors) {
    expected[tensor.name] = bytes_of(one->shards[0].path, tensor);
  }
  size_t num_tensors = 0;
  for (const WeightFile& shard : sharded->shards) {
    EXPECT_LE(shard.header.tensors.back().end - shard.header.tensors.front().begin, 7000u) << shard.file_name;
    for (const auto& tensor : shard.header.tensors) {
      EXPECT_TRUE(bytes_of(shard.path, tensor) == expected.at(tensor.name)) << tensor.name;
      ++num_tensors;
    }
  }
  EXPECT_EQ(num_tensors, expected.size());
}

TEST(ModelInitTest, NothingIsOverwritten) {
  const TempFolder folder;
  EXPECT_EQ(WriteRandomModel(SmallLlama(), {}, folder.path()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(WriteRandomModel(SmallLlama(), {}, folder / "a/b").code(), absl::StatusCode::kNotFound);
}

TEST(ModelInitTest, WhatDoesNotFitIsRemovedAndCanBeTriedAgain) {
  const TempFolder folder;
  for (const ModelInitOptions& options : {ModelInitOptions{}, ModelInitOptions{.max_shard_bytes = 7000}}) {
    for (const rlim_t bytes : {0, 2000}) {  // not even its config; a part of its weights
      const FileSizeLimit limit(bytes);
      EXPECT_FALSE(WriteRandomModel(SmallLlama(), options, folder / "m").ok());
      EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    }
  }
  EXPECT_THAT(WriteRandomModel(SmallLlama(), {}, folder / "m"), IsOk());
}

TEST(ModelInitTest, AConfigThatCannotBeReadIsNotWritten) {
  const TempFolder folder;
  ModelConfig config = SmallLlama();
  config.num_kv_heads = 3;
  EXPECT_THAT(WriteRandomModel(config, {}, folder / "m"), Invalid("num_key_value_heads"));
  EXPECT_THAT(WriteRandomModel(SmallLlama(), {.dtype = Dtype::kI32}, folder / "m"), Invalid("I32"));
  EXPECT_THAT(WriteRandomModel(SmallLlama(), {.weight_std = NAN}, folder / "m"), Invalid("standard deviation"));
  EXPECT_FALSE(std::filesystem::exists(folder / "m"));
}

TEST(RandomValuesTest, NormalsHaveUnitVarianceAndNormalTails) {
  RandomValues random(1, "x");
  double sum = 0, sum_2 = 0, sum_4 = 0;
  const int count = 1000000;
  for (int i = 0; i < count; ++i) {
    const double value = random.NextNormal();
    sum += value;
    sum_2 += value * value;
    sum_4 += value * value * value * value;
  }
  // Five standard errors of each; the fourth moment of twelve uniforms is 3 - 0.1.
  EXPECT_NEAR(sum / count, 0, 5e-3);
  EXPECT_NEAR(sum_2 / count, 1, 8e-3);
  EXPECT_NEAR(sum_4 / count, 2.9, 5e-2);
}

TEST(RandomValuesTest, StreamsDifferBySeedAndName) {
  const uint64_t first = RandomValues(1, "a").NextInteger();
  EXPECT_NE(first, RandomValues(1, "b").NextInteger());
  EXPECT_NE(first, RandomValues(2, "a").NextInteger());
  EXPECT_EQ(first, RandomValues(1, "a").NextInteger());
}

}  // namespace
}  // namespace stemma
