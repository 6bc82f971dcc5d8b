#include "common/model/model_config.h"

#include <string>

#include "common/base/json.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using ::nlohmann::json;
using testing::Invalid;
using testing::IsOk;

json Llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
    "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256})");
}

json Qwen2() {
  return json::parse(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
    "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
}

json Qwen3() {
  return json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "dtype": "bfloat16", "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
    "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 2, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})");
}

json Qwen3Moe() {
  return json::parse(R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 151936})");
}

json Mistral() {
  return json::parse(R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_cache": true, "vocab_size": 32768})");
}

absl::StatusOr<ModelConfig> ParseConfig(const json& config) { return ParseModelConfig(config.dump()); }

absl::StatusOr<ModelConfig> With(json config, const std::string& name, json value) {
  config[name] = std::move(value);
  return ParseConfig(config);
}

TEST(ModelConfigTest, Llama32IsRead) {
  const auto config = ParseConfig(Llama());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->num_parameters(), 1235814400);  // Llama-3.2-1B, as its model card counts them
  EXPECT_EQ(config->rope_theta, 500000);
  ASSERT_TRUE(config->rope_scaling.has_value());
  EXPECT_EQ(config->rope_scaling->factor, 32);
  EXPECT_EQ(config->rope_scaling->original_max_positions, 8192);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->qkv_bias);
}

TEST(ModelConfigTest, Qwen25IsReadWithBiasAndDefaultHeadSize) {
  const auto config = ParseConfig(Qwen2());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->num_parameters(), 494032768);  // Qwen2.5-0.5B
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_EQ(config->head_size, 64);
  EXPECT_FALSE(config->rope_scaling.has_value());
}

TEST(ModelConfigTest, Qwen3IsReadInTransformers5Spelling) {
  const auto config = ParseConfig(Qwen3());
  ASSERT_THAT(config, IsOk());
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->head_size, 128);
  EXPECT_EQ(config->rope_theta, 1000000);
}

TEST(ModelConfigTest, MistralIsReadWithoutBiasOrQueryNorm) {
  const auto config = ParseConfig(Mistral());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->num_parameters(), 7248023552);  // Mistral-7B-v0.3
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->head_size, 128);
  EXPECT_EQ(With(Mistral(), "head_dim", 160)->head_size, 160);
}

TEST(ModelConfigTest, Qwen3MoeIsReadWithItsExperts) {
  const auto config = ParseConfig(Qwen3Moe());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->num_parameters(), 30532122624);  // Qwen3-30B-A3B
  EXPECT_EQ(config->ffn_size, 768) << "of an expert, whatever intermediate_size says";
  EXPECT_TRUE(config->qk_norm);
  ASSERT_TRUE(config->experts.has_value());
  EXPECT_EQ(*config->experts, (Experts{.count = 128, .per_token = 8, .weights_sum_to_one = true}));
  EXPECT_EQ(config->mlps_per_token(), 8);
  EXPECT_FALSE(ParseConfig(Qwen3())->experts.has_value());
  EXPECT_EQ(ParseConfig(Qwen3())->mlps_per_token(), 1);
}

TEST(ModelConfigTest, AbsentFieldsOfExpertsMeanWhatTransformersHas) {
  json moe = Qwen3Moe();
  for (const char* name : {"norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "output_router_logits"}) {
    moe.erase(name);
  }
  moe.erase("head_dim");
  moe.erase("intermediate_size");
  const auto config = ParseConfig(moe);
  ASSERT_THAT(config, IsOk());
  EXPECT_FALSE(config->experts->weights_sum_to_one);
  EXPECT_EQ(config->head_size, 64) << "hidden_size / num_attention_heads";
  EXPECT_THAT(With(Qwen3Moe(), "mlp_only_layers", nullptr), IsOk());
}

TEST(ModelConfigTest, BothSpellingsOfTheNumberOfExpertsMeanTheSame) {
  json five = Qwen3Moe();
  five.erase("num_experts");
  EXPECT_THAT(ParseConfig(five), Invalid("num_experts: is missing"));
  five["num_local_experts"] = 64;
  EXPECT_EQ(ParseConfig(five)->experts->count, 64);
  five["num_experts"] = 64;
  EXPECT_THAT(ParseConfig(five), IsOk());
  five["num_experts"] = 65;
  EXPECT_THAT(ParseConfig(five), Invalid("num_experts: differs from num_local_experts"));
}

TEST(ModelConfigTest, ExpertsThatAreNotSupportedAreRefused) {
  const struct {
    const char* field;
    json value;
    const char* why;
  } kRefused[] = {{"num_experts", 0, "num_experts: must be a whole number from 1 to 4096, is 0"},
                  {"num_experts", 4097, "num_experts: must be a whole number from 1 to 4096, is 4097"},
                  {"num_hidden_layers", 2049, "num_experts: 128 in each of 2049 layers are more than 262144 in all"},
                  {"num_experts", 7, "num_experts_per_tok: 8 is more than the 7 experts that there are"},
                  {"num_experts_per_tok", 0, "num_experts_per_tok: must be a whole number from 1 to 4096, is 0"},
                  {"moe_intermediate_size", nullptr, "moe_intermediate_size: is missing"},
                  {"decoder_sparse_step", 2, "decoder_sparse_step: 2: layers without experts"},
                  {"mlp_only_layers", {3}, "mlp_only_layers: names layers without experts"},
                  {"output_router_logits", true, "output_router_logits: true asks for the router's auxiliary loss"},
                  {"norm_topk_prob", 1, "norm_topk_prob"}};
  for (const auto& [field, value, why] : kRefused) EXPECT_THAT(With(Qwen3Moe(), field, value), Invalid(why));
}

// transformers gives it to every layer, whatever max_window_layers says.
TEST(ModelConfigTest, AWindowOfAMixtureOfExpertsIsRefused) {
  json moe = Qwen3Moe();
  moe["use_sliding_window"] = true;
  EXPECT_THAT(ParseConfig(moe), IsOk()) << "a sliding_window of null is none";
  moe["sliding_window"] = 4096;
  EXPECT_THAT(ParseConfig(moe), Invalid("use_sliding_window: true: sliding windows are not supported"));
  moe.erase("sliding_window");
  EXPECT_THAT(ParseConfig(moe), Invalid("use_sliding_window"));
}

TEST(ModelConfigTest, BothSpellingsOfRopeMeanTheSame) {
  json five = Llama();
  five["rope_parameters"] = five["rope_scaling"];
  five["rope_parameters"]["rope_theta"] = 500000.0;
  five.erase("rope_scaling");
  five.erase("rope_theta");
  const auto config = ParseConfig(five);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_EQ(config->rope_scaling->high_freq_factor, 4);
  five["original_max_position_embeddings"] = 8192;
  EXPECT_THAT(ParseConfig(five), IsOk());
  five["original_max_position_embeddings"] = 4096;  // transformers would take this one
  EXPECT_THAT(ParseConfig(five), Invalid("original_max_position_embeddings: differs from that of the RoPE scaling"));
  json legacy = Llama();
  legacy["rope_scaling"]["type"] = "llama3";
  legacy["rope_scaling"].erase("rope_type");
  EXPECT_EQ(ParseConfig(legacy)->rope_scaling->factor, 32);
  EXPECT_THAT(With(Llama(), "rope_parameters", {{"rope_type", "default"}}), Invalid("rope_scaling: differs"));
}

TEST(ModelConfigTest, AbsentKvHeadsMeanMultiHeadForLlamaOnly) {
  json llama = Llama();
  llama.erase("num_key_value_heads");
  EXPECT_EQ(ParseConfig(llama)->num_kv_heads, 32);
  json qwen = Qwen2();
  qwen.erase("num_key_value_heads");
  EXPECT_THAT(ParseConfig(qwen), Invalid("num_key_value_heads: is missing"));
  EXPECT_EQ(With(Qwen2(), "num_key_value_heads", nullptr)->num_kv_heads, 14) << "null says that there are as many";
}

TEST(ModelConfigTest, AbsentHeadDimIsTheFamilysDefault) {
  json qwen3 = Qwen3();
  qwen3.erase("head_dim");
  EXPECT_EQ(ParseConfig(qwen3)->head_size, 128);
  json llama = Llama();
  llama.erase("head_dim");
  EXPECT_EQ(ParseConfig(llama)->head_size, 64);
  EXPECT_EQ(With(Qwen3(), "head_dim", nullptr)->head_size, 64) << "null is what the other sizes give";
}

struct Refusal {
  const char* field;
  json value;
  const char* message;
};

TEST(ModelConfigTest, WhatIsNotSupportedIsRefusedByFieldName) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  for (const Refusal& refusal : std::vector<Refusal>{
           {"model_type", "gemma", "model_type: \"gemma\" is not supported: this server trains llama (Llama 3.x), "},
           {"model_type", 7, "model_type: must be a string"},
           {"architectures", {"LlamaForSequenceClassification"}, "architectures: must be"},
           {"hidden_act", "gelu", "hidden_act: \"gelu\""},
           {"attention_dropout", 0.1, "attention_dropout: 0.1"},
           {"dropout", 0.5, "dropout: 0.5"},
           {"quantization_config", {{"bits", 4}}, "quantization_config: "},
           {"attention_bias", true, "attention_bias: true"},
           {"mlp_bias", true, "mlp_bias: true"},
           {"rope_scaling", yarn, "rope_scaling.rope_type: \"yarn\""},
           {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, "rope_scaling.type: \"linear\""},
           {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}, "rope_scaling.low_freq_factor: is missing"},
           {"rope_scaling", "llama3", "rope_scaling: must be an object"},
           {"sliding_window", 4096, "sliding_window: a sliding window"},
           {"layer_types", json::array({"full_attention"}), "layer_types: has 1 entries for 16 layers"},
           {"is_causal", false, "is_causal: false is not supported"},
           {"is_causal", nullptr, "is_causal: null, as false, is not supported"},
           {"transformers_weights", "other.safetensors", "transformers_weights: another file of weights"},
           {"configuration_files", json::array({"config.4.0.0.json"}),
            "configuration_files: another file in the place of"},
           {"auto_map",
            {{"AutoModelForCausalLM", "modeling.M"}},
            "auto_map: AutoModelForCausalLM is \"modeling.M\": a model's"},
           {"auto_map", {{"AutoModel", "modeling.M"}}, "auto_map: AutoModel is"},
           {"per_layer_config", {{"1", {{"rms_norm_eps", 0.5}}}}, "per_layer_config: a layer of its own"},
           {"partial_rotary_factor", 0.5, "partial_rotary_factor: only 1"}}) {
    EXPECT_THAT(With(Llama(), refusal.field, refusal.value), Invalid(refusal.message)) << refusal.field;
  }
}

TEST(ModelConfigTest, CodeOfATokenizerIsNoneOfTheModel) {
  EXPECT_THAT(With(Llama(), "auto_map", {{"AutoTokenizer", {"tokenization.T", nullptr}}, {"AutoProcessor", "p.P"}}),
              IsOk());
}

TEST(ModelConfigTest, FrequenciesOfLlama3AreInTheirOrder) {
  const auto with = [](const char* field, double value) {
    json config = Llama();
    config["rope_scaling"][field] = value;
    return ParseConfig(config);
  };
  EXPECT_THAT(with("factor", 1), IsOk());
  EXPECT_THAT(with("factor", 0.99), Invalid("rope_scaling.factor: 0.99: must be at least 1"));
  EXPECT_THAT(with("low_freq_factor", 0), Invalid("rope_scaling.low_freq_factor: must be above 0"));
  EXPECT_THAT(with("high_freq_factor", 1), Invalid("rope_scaling.high_freq_factor: must be above low_freq_factor"));
}

TEST(ModelConfigTest, AttentionThatIsSaidToBeCausalIs) { EXPECT_THAT(With(Llama(), "is_causal", true), IsOk()); }

TEST(ModelConfigTest, NoArchitectureIsNoOther) {
  EXPECT_THAT(With(Llama(), "architectures", json::array()), IsOk());
  EXPECT_THAT(With(Llama(), "architectures", nullptr), IsOk());
}

TEST(ModelConfigTest, ASlidingWindowIsRefusedOnlyWhenItIsInUse) {
  EXPECT_THAT(With(Qwen2(), "use_sliding_window", true), Invalid("use_sliding_window: true, in use from layer 21"));
  json all_full = Qwen2();
  all_full["use_sliding_window"] = true;
  all_full["max_window_layers"] = 24;
  EXPECT_THAT(ParseConfig(all_full), IsOk());
  json no_window = Qwen2();
  no_window["use_sliding_window"] = true;
  no_window["sliding_window"] = nullptr;
  EXPECT_THAT(ParseConfig(no_window), IsOk());
  EXPECT_THAT(With(Qwen3(), "layer_types", {"full_attention", "sliding_attention"}),
              Invalid("layer_types[1]: \"sliding_attention\""));
}

TEST(ModelConfigTest, MistralsWindowIsRefusedWhereItIsBelowTheLongestText) {
  EXPECT_THAT(With(Mistral(), "sliding_window", 4096),
              Invalid("sliding_window: 4096 is below max_position_embeddings 32768, and sliding windows are not "
                      "supported: set max_position_embeddings to 4096 if"));
  EXPECT_THAT(With(Mistral(), "sliding_window", 32767), Invalid("sliding_window: 32767 is below"));
  EXPECT_THAT(With(Mistral(), "sliding_window", 32768), IsOk());
  EXPECT_THAT(With(Mistral(), "sliding_window", 0), Invalid("sliding_window: must be"));
  EXPECT_THAT(With(Mistral(), "sliding_window", "4096"), Invalid("sliding_window: must be"));
  json absent = Mistral();
  absent.erase("sliding_window");
  EXPECT_THAT(ParseConfig(absent), Invalid("sliding_window: 4096 (where it is absent) is below"));
  EXPECT_THAT(With(absent, "max_position_embeddings", 4096), IsOk());
}

TEST(ModelConfigTest, AttentionBiasIsQwen2sOwn) {
  EXPECT_THAT(With(Qwen2(), "attention_bias", true), IsOk());
  EXPECT_THAT(With(Qwen3(), "attention_bias", true), Invalid("attention_bias"));
}

TEST(ModelConfigTest, AbsurdSizesAreRefused) {
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "intermediate_size", "max_position_embeddings", "num_key_value_heads", "head_dim"}) {
    for (const json& value : {json(0), json(-1), json(int64_t{1} << 40), json(UINT64_MAX), json(1.5), json("8"),
                              json(true), json::array()}) {
      EXPECT_THAT(With(Llama(), field, value), Invalid(std::string(field) + ": must be")) << value;
    }
  }
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "intermediate_size", "max_position_embeddings"}) {
    EXPECT_THAT(With(Llama(), field, nullptr), Invalid(std::string(field) + ": is missing"));
  }
}

TEST(ModelConfigTest, SizesThatDoNotFitTogetherAreRefused) {
  EXPECT_THAT(With(Llama(), "num_key_value_heads", 7), Invalid("num_key_value_heads: 7 does not divide"));
  EXPECT_THAT(With(Llama(), "head_dim", 63), Invalid("head_dim: 63 is odd"));
  json indivisible = Llama();
  indivisible.erase("head_dim");
  indivisible["hidden_size"] = 2050;
  EXPECT_THAT(ParseConfig(indivisible), Invalid("does not divide hidden_size"));
  json huge = Llama();
  for (const char* field : {"hidden_size", "intermediate_size"}) huge[field] = 1 << 20;
  huge["num_hidden_layers"] = 1 << 14;
  EXPECT_THAT(ParseConfig(huge), Invalid("more than any machine holds"));
}

TEST(ModelConfigTest, TextThatIsNoConfigIsRefused) {
  EXPECT_THAT(ParseModelConfig(""), Invalid("not JSON"));
  EXPECT_THAT(ParseModelConfig("[]"), Invalid("not an object"));
  EXPECT_THAT(ParseModelConfig("{}"), Invalid("model_type: is missing"));
  EXPECT_THAT(ParseModelConfig(std::string(1000000, '[')), Invalid("nested deeper"));
  EXPECT_THAT(ParseModelConfig(R"({"rms_norm_eps": 1e999})"), Invalid("not JSON"));
  EXPECT_THAT(With(Llama(), "rms_norm_eps", -1), Invalid("rms_norm_eps"));
  EXPECT_THAT(With(Llama(), "rms_norm_eps", 1), Invalid("rms_norm_eps: 1: must be in [0, 1)"));
  EXPECT_THAT(With(Llama(), "rope_theta", 0), Invalid("rope_theta"));
}

}  // namespace
}  // namespace stemma
