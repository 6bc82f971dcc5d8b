// What a checkpoint's folder may hold and what is refused, with the name of what is wrong.
#include "worker/checkpoint/checkpoint_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/cost/state_bytes.h"
#include "common/model/config_difference.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/weights_digest.h"
#include "tests/testing/whole_model.h"
#include "tests/worker/checkpoint/saved_checkpoint.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using safetensors::TensorEntry;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kQ[] = "model.layers.1.self_attn.q_proj.weight";

class CheckpointLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ =
        SyntheticModel({.hidden = 24, .layers = 2, .heads = 2, .kv_heads = 1, .head_size = 4, .ffn = 20, .vocab = 60});
    ASSERT_THAT(WriteRandomModel(config_, {}, folder_ / "model"), IsOk());
    const auto directory = OpenModelDirectory(folder_ / "model");
    ASSERT_THAT(directory, IsOk());
    const auto weights = LoadWeights(*directory, WholeModel(config_), at::kFloat, at::kCPU, {});
    ASSERT_THAT(weights, IsOk());
    fs::create_directories(path_ + "/optim");
    CheckpointSaver saver(*weights, *directory, AllRanges(weights->parameters),
                          {.checkpoints = folder_ / "checkpoints"});
    internal::v1::Save save;
    save.set_folder("c");
    SavedAnswers answers;
    ASSERT_THAT(saver.Save(save, WeightsDigest(*weights), answers.Functions()), IsOk());
    ASSERT_FALSE(answers.WaitForDone().has_failure());
  }

  absl::StatusOr<Weights> Load(const StateOptions& states = {}) const {
    return LoadCheckpoint(path_, WholeModel(config_), at::kBFloat16, at::kCPU, states);
  }
  // Changes a file of the checkpoint: its tensors, and the data that comes after the header.
  using Edit = std::function<void(std::vector<TensorEntry>& tensors, std::string& data)>;
  void Rewrite(const std::string& file, const Edit& edit) const {
    const std::string path = path_ + "/" + file;
    std::vector<TensorEntry> tensors = safetensors::ReadHeader(path)->tensors;
    std::string data = ReadFile(path, kTestFileBytesMax)->substr(tensors.front().begin);
    edit(tensors, data);
    const std::string header = safetensors::MakeHeader(tensors, {});
    data.resize(tensors.back().end - header.size());
    ASSERT_THAT(WriteFile(path, header + data), IsOk());
  }
  template <typename Number>
  void SetElement(const std::string& file, const std::string& tensor, int64_t index, Number value) const {
    const std::string path = path_ + "/" + file;
    std::string content = *ReadFile(path, kTestFileBytesMax);
    const safetensors::Header header = *safetensors::ReadHeader(path);
    for (const TensorEntry& entry : header.tensors) {
      if (entry.name == tensor) {
        std::memcpy(content.data() + entry.begin + static_cast<size_t>(index) * sizeof(Number), &value, sizeof(Number));
      }
    }
    ASSERT_THAT(WriteFile(path, content), IsOk());
  }
  static TensorEntry& Find(std::vector<TensorEntry>& tensors, const std::string& name) {
    for (TensorEntry& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors.front();
  }

  const TempFolder folder_;
  const std::string path_ = folder_ / "checkpoints/c";
  ModelConfig config_;
};

constexpr const char* kMoments[] = {"optim/exp_avg-model.safetensors", "optim/exp_avg_sq-model.safetensors"};

TEST_F(CheckpointLoaderTest, LoadsWhatWasSaved) { EXPECT_THAT(Load(), IsOk()); }

TEST_F(CheckpointLoaderTest, WeightsAloneAreThoseOfTheStateWithoutWhatTrainsThem) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto state = LoadCheckpoint(path_, WholeModel(config_), dtype, at::kCPU, {});
    ASSERT_THAT(state, IsOk());
    const std::string digest = WeightsDigest(*state);
    const auto weights = LoadCheckpointWeights(path_, WholeModel(config_), dtype, at::kCPU);
    ASSERT_THAT(weights, IsOk());
    EXPECT_EQ(WeightsDigest(*weights), digest);
    ASSERT_EQ(weights->parameters.size(), state->parameters.size());
    int64_t bytes = 0;
    for (const Parameter& p : weights->parameters) bytes += static_cast<int64_t>(p.weight.nbytes());
    const RunDtype run_dtype = dtype == at::kFloat    ? RunDtype::kFp32
                               : dtype == at::kDouble ? RunDtype::kFp64
                                                      : RunDtype::kBf16;
    EXPECT_EQ(bytes, StateBytesOf(config_, run_dtype).weights) << "what plans count";
    for (const Parameter& p : weights->parameters) {
      EXPECT_FALSE(p.grad.defined() || p.exp_avg.defined() || p.exp_avg_sq.defined()) << p.name;
      EXPECT_TRUE(p.master_is_weight() || !p.master.defined()) << p.name;
    }
  }
}

TEST_F(CheckpointLoaderTest, WeightsOfAnotherDigestAreRefused) {
  const ModelShard whole = WholeModel(config_);
  const std::string digest = WeightsDigest(*LoadCheckpoint(path_, whole, at::kFloat, at::kCPU, {}));
  SetElement("model.safetensors", kQ, 24 * 3 + 5, 1.0f);
  const auto changed = LoadCheckpointWeights(path_, whole, at::kFloat, at::kCPU);
  ASSERT_THAT(changed, IsOk());
  const absl::Status refused = CheckWeightsDigest(path_, WeightsDigest(*changed), digest);
  EXPECT_EQ(ErrorReason(refused), "CORRUPT_CHECKPOINT");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its weights are not those that were saved"));
  EXPECT_THAT(CheckWeightsDigest(path_, digest, digest), IsOk());
  EXPECT_THAT(CheckWeightsDigest(path_, WeightsDigest(*changed), ""), IsOk()) << "where none is known";
  EXPECT_EQ(LoadCheckpointWeights(folder_ / "checkpoints/d", whole, at::kFloat, at::kCPU).status().code(),
            absl::StatusCode::kNotFound);
  ModelConfig other = config_;
  other.rms_norm_eps *= 2;
  EXPECT_THAT(LoadCheckpointWeights(path_, WholeModel(other), at::kFloat, at::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not that of the run's model")));
}

TEST_F(CheckpointLoaderTest, ANumberThatIsNotFiniteIsNamed) {
  SetElement("model.safetensors", kQ, 24 * 3 + 5, std::nanf(""));
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("c/model.safetensors"), HasSubstr(kQ), HasSubstr("[3, 5] is nan"))));
  SetElement("model.safetensors", kQ, 24 * 3 + 5, 1.0f);
  for (const char* file : kMoments) {
    SetElement(file, kQ, 24 * 7 + 23, std::numeric_limits<float>::infinity());
    EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr(file), HasSubstr(kQ), HasSubstr("element [7, 23] is inf"),
                                       HasSubstr("load an older checkpoint"))));
    SetElement(file, kQ, 24 * 7 + 23, 0.0f);
    EXPECT_THAT(Load(), IsOk());
  }
}

// A rank reads what it owns, and no other rank's: of several, exactly one finds the number; a number of a K/V head, or
// of a norm, each of those that hold it.
TEST_F(CheckpointLoaderTest, ARankReadsTheMomentsThatItOwns) {
  struct Place {
    const char* tensor;
    int index;
    int holders;  // of two tensor-parallel ranks
  };
  const Place places[] = {{"model.embed_tokens.weight", 0, 1},
                          {kQ, 100, 1},
                          {"lm_head.weight", 1439, 1},
                          {"model.layers.1.self_attn.k_proj.weight", 7, 2},
                          {"model.layers.0.self_attn.o_proj.weight", 8 * 11 + 3, 1},
                          {"model.layers.0.self_attn.o_proj.weight", 8 * 11 + 4, 1},
                          {"model.layers.1.mlp.down_proj.weight", 20 * 23 + 19, 1},
                          {"model.norm.weight", 23, 2}};
  for (const Place& place : places) {
    SetElement(kMoments[1], place.tensor, place.index, std::nanf(""));
    for (const auto& [dp, tp] : {std::pair(4, 1), {1, 2}, {2, 2}, {3, 2}}) {
      int found = 0;
      for (int rank = 0; rank < dp * tp; ++rank) {
        const auto shard = MakeModelShard(config_, {.tp_rank = rank % tp, .tp_size = tp});
        ASSERT_THAT(shard, IsOk());
        const auto loaded =
            LoadCheckpoint(path_, *shard, at::kFloat, at::kCPU, {.owners = {.rank = rank / tp, .ranks = dp}});
        if (loaded.ok()) continue;
        ++found;
        EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(place.tensor));
      }
      EXPECT_EQ(found, tp == 1 ? 1 : place.holders) << place.tensor << ", dp=" << dp << ", tp=" << tp;
    }
    SetElement(kMoments[1], place.tensor, place.index, 0.0f);
  }
}

TEST_F(CheckpointLoaderTest, MomentsAreOfTheModelsTensors) {
  const auto expect = [&](const char* what, const Edit& edit, const std::string& why) {
    SCOPED_TRACE(what);
    const std::string file = kMoments[0], before = *ReadFile(path_ + "/" + file, kTestFileBytesMax);
    Rewrite(file, edit);
    EXPECT_THAT(Load(),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(file), HasSubstr(kQ), HasSubstr(why))));
    ASSERT_THAT(WriteFile(path_ + "/" + file, before), IsOk());
  };
  expect(
      "transposed", [](auto& tensors, auto&) { std::swap(Find(tensors, kQ).shape[0], Find(tensors, kQ).shape[1]); },
      "has shape [24,8], the weight's is [8,24]");
  expect(
      "flat", [](auto& tensors, auto&) { Find(tensors, kQ).shape = {24 * 8}; }, "has shape [192]");
  expect(
      "gone", [](auto& tensors, auto&) { std::erase_if(tensors, [](auto& t) { return t.name == kQ; }); }, "is missing");
  expect(
      "strange",
      [](auto& tensors, auto&) {
        tensors.push_back({std::string(kQ) + ".old", Dtype::kF32, {1}});
      },
      "does not belong to model.safetensors");
  for (const auto& [dtype, name] : {std::pair(Dtype::kBF16, "BF16"), {Dtype::kI32, "I32"}, {Dtype::kF16, "F16"}}) {
    expect(
        name, [&](auto& tensors, auto&) { Find(tensors, kQ).dtype = dtype; },
        std::string("has dtype ") + name + "; optimizer states are F32 or F64");
  }
}

TEST_F(CheckpointLoaderTest, FilesThatAreCutOrGoneAreNamed) {
  for (const std::string file : {"model.safetensors", kMoments[0], kMoments[1]}) {
    const std::string path = path_ + "/" + file, content = *ReadFile(path, kTestFileBytesMax);
    for (const size_t bytes : {content.size() - 1, size_t{100}, size_t{7}, size_t{0}}) {
      ASSERT_THAT(WriteFile(path, content.substr(0, bytes)), IsOk());
      EXPECT_THAT(Load(), Invalid(file)) << bytes;
    }
    ASSERT_THAT(WriteFile(path, content + "x"), IsOk());
    EXPECT_THAT(Load(), Invalid("trailing data"));
    fs::remove(path);
    EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kNotFound, HasSubstr(file)));
    ASSERT_THAT(WriteFile(path, content), IsOk());
  }
  EXPECT_THAT(Load(), IsOk());
}

TEST_F(CheckpointLoaderTest, LinksAreRefused) {
  for (const std::string file : {"model.safetensors", "config.json", kMoments[0], "optim"}) {
    const fs::path path = fs::path(path_) / file, elsewhere = folder_ / "elsewhere";
    fs::rename(path, elsewhere);
    fs::create_symlink(elsewhere, path);
    EXPECT_THAT(Load(), AllOf(Invalid(file), Invalid("it is a link")));
    fs::remove(path);
    fs::rename(elsewhere, path);
  }
  fs::rename(path_, folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", path_);
  EXPECT_THAT(Load(), AllOf(Invalid("checkpoints/c"), Invalid("it is a link")));
  fs::remove(path_);
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("checkpoints/c")));
}

// Who adds chat templates to a checkpoint that was saved without them may link to those of the model.
TEST_F(CheckpointLoaderTest, ALinkToWhatIsNotReadIsNone) {
  fs::create_directory(folder_ / "templates");
  ASSERT_THAT(WriteFile(folder_ / "templates/tool_use.jinja", "{{ tools }}"), IsOk());
  fs::create_symlink(folder_ / "templates", path_ + "/" + kChatTemplatesFolder);
  fs::create_symlink(folder_ / "templates/tool_use.jinja", path_ + "/chat_template.jinja");
  EXPECT_THAT(Load(), IsOk());
  fs::remove_all(folder_ / "templates");  // nor need it lead anywhere
  EXPECT_THAT(Load(), IsOk());
}

TEST_F(CheckpointLoaderTest, AnotherConfigIsRefusedWithItsFirstField) {
  config_.rope_theta += 1;
  EXPECT_THAT(Load(), AllOf(Invalid("c/config.json: rope_theta is not that of the run's model"),
                            Invalid("give another model a --data of its own")));
}

TEST(ConfigDifferenceTest, EveryFieldIsCompared) {
  ModelConfig config = SyntheticModel({.experts = Experts{}});
  const std::vector<std::pair<const char*, std::function<void(ModelConfig&)>>> edits = {
      {"model_type", [](ModelConfig& c) { c.model_type = "other"; }},
      {"vocab_size", [](ModelConfig& c) { ++c.vocab_size; }},
      {"hidden_size", [](ModelConfig& c) { ++c.hidden_size; }},
      {"num_hidden_layers", [](ModelConfig& c) { ++c.num_layers; }},
      {"num_attention_heads", [](ModelConfig& c) { ++c.num_heads; }},
      {"num_key_value_heads", [](ModelConfig& c) { ++c.num_kv_heads; }},
      {"head_dim", [](ModelConfig& c) { ++c.head_size; }},
      {"moe_intermediate_size", [](ModelConfig& c) { ++c.ffn_size; }},
      {"max_position_embeddings", [](ModelConfig& c) { ++c.max_positions; }},
      {"rms_norm_eps", [](ModelConfig& c) { c.rms_norm_eps *= 1 + 1e-15; }},
      {"rope_theta", [](ModelConfig& c) { ++c.rope_theta; }},
      {"rope_scaling", [](ModelConfig& c) { c.rope_scaling = Llama3RopeScaling{}; }},
      {"tie_word_embeddings", [](ModelConfig& c) { c.tie_word_embeddings = true; }},
      {"attention_bias", [](ModelConfig& c) { c.qkv_bias = true; }},
      {"qk_norm", [](ModelConfig& c) { c.qk_norm = !c.qk_norm; }},
      {"num_experts", [](ModelConfig& c) { ++c.experts->count; }},
      {"num_experts_per_tok", [](ModelConfig& c) { ++c.experts->per_token; }},
      {"norm_topk_prob", [](ModelConfig& c) { c.experts->weights_sum_to_one = false; }}};
  EXPECT_EQ(FirstDifference(config, config), "");
  ModelConfig other = config;
  for (auto edit = edits.rbegin(); edit != edits.rend(); ++edit) {
    ModelConfig one = config;
    edit->second(one);
    EXPECT_EQ(FirstDifference(config, one), edit->first);
    edit->second(other);
    EXPECT_EQ(FirstDifference(other, config), edit->first) << "the first of several";
  }
  config.rope_scaling = Llama3RopeScaling{};
  for (double Llama3RopeScaling::*factor :
       {&Llama3RopeScaling::factor, &Llama3RopeScaling::low_freq_factor, &Llama3RopeScaling::high_freq_factor}) {
    ModelConfig one = config;
    (*one.rope_scaling).*factor += 1;
    EXPECT_EQ(FirstDifference(config, one), "rope_scaling");
  }
  ModelConfig one = config;
  ++one.ffn_size;
  EXPECT_EQ(FirstDifference(config, one), "moe_intermediate_size");
  one = config;
  one.experts.reset();
  EXPECT_EQ(FirstDifference(config, one), "num_experts");
  one = config;
  ++one.rope_scaling->original_max_positions;
  EXPECT_EQ(FirstDifference(config, one), "rope_scaling");
}

}  // namespace
}  // namespace stemma::testing
