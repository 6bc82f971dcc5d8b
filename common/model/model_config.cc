#include "common/model/model_config.h"

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/json_fields.h"
#include "common/base/status_macros.h"
#include "common/model/model_tensors.h"

namespace stemma {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt32 = 0x7fffffff;  // token ids and positions are int32
constexpr int64_t kMaxParameters = int64_t{1} << 50;
constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 18;  // of which each has three tensors with names

// "llama (Llama 3.x), qwen2 (Qwen2, Qwen2.5) and qwen3 (dense)"
std::string FamiliesText() {
  std::string text;
  for (const Family& family : Families()) {
    const bool last = &family == &Families().back();
    absl::StrAppend(&text,
                    text.empty() ? ""
                    : last       ? " and "
                                 : ", ",
                    std::string(family.model_type), " (", std::string(family.models), ")");
  }
  return text;
}

absl::StatusOr<const Family*> ParseFamily(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const std::string model_type, fields.String("model_type"));
  if (const Family* family = FindFamily(model_type); family != nullptr) return family;
  return fields.Error("model_type",
                      absl::StrCat(JsonExcerpt(model_type), " is not supported: this server trains ", FamiliesText()));
}

absl::Status CheckArchitectures(const JsonFields& fields, const Family& family) {
  const json* value = fields.Find("architectures");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array()) return fields.Error("architectures", "is not a list");
  for (const json& name : *value) {
    if (name.is_string() && name.get_ref<const std::string&>() == family.architecture) return absl::OkStatus();
  }
  if (value->empty()) return absl::OkStatus();
  return fields.Error("architectures", absl::StrCat("must be [\"", std::string(family.architecture),
                                                    "\"] for this model_type, is ", JsonExcerpt((*value)[0])));
}

// A field that must be absent, null, or false.
absl::Status RefuseTrue(const JsonFields& fields, const char* name) {
  ASSIGN_OR_RETURN(const bool value, fields.BoolOr(name, false));
  return value ? fields.Error(name, "true is not supported") : absl::OkStatus();
}

absl::Status RefusePresent(const JsonFields& fields, const char* name, const char* what) {
  return fields.Find(name) == nullptr ? absl::OkStatus() : fields.Error(name, absl::StrCat(what, " is not supported"));
}

absl::Status RefusePositive(const JsonFields& fields, const char* name) {
  ASSIGN_OR_RETURN(const double value, fields.NumberOr(name, 0));
  return value == 0 ? absl::OkStatus() : fields.Error(name, absl::StrCat(value, ": dropout is not supported, use 0"));
}

absl::Status CheckLayerTypes(const JsonFields& fields, const ModelConfig& config) {
  const json* layer_types = fields.Find("layer_types");
  if (layer_types == nullptr) return absl::OkStatus();
  if (!layer_types->is_array()) return fields.Error("layer_types", "is not a list");
  if (static_cast<int64_t>(layer_types->size()) != config.num_layers) {
    return fields.Error("layer_types", absl::StrCat("has ", layer_types->size(), " entries for ", config.num_layers,
                                                    " layers (num_hidden_layers)"));
  }
  for (size_t l = 0; l < layer_types->size(); ++l) {
    if ((*layer_types)[l] == "full_attention") continue;
    return fields.Error(absl::StrCat("layer_types[", l, "]"),
                        absl::StrCat(JsonExcerpt((*layer_types)[l]), ": only \"full_attention\" is supported"));
  }
  return absl::OkStatus();
}

// WindowRule::kFlag.
absl::Status CheckWindowFlag(const JsonFields& fields, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const bool use, fields.BoolOr("use_sliding_window", false));
  if (!use || fields.Find("layer_types") != nullptr || fields.IsNull("sliding_window")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t max_window_layers, fields.IntOr("max_window_layers", 28, 0, kMaxInt32));
  if (max_window_layers >= config.num_layers) return absl::OkStatus();
  return fields.Error("use_sliding_window", absl::StrCat("true, in use from layer ", max_window_layers,
                                                         " (max_window_layers): sliding windows are not supported"));
}

// WindowRule::kFlagOfAllLayers.
absl::Status CheckWindowOfAllLayers(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const bool use, fields.BoolOr("use_sliding_window", false));
  if (!use || fields.IsNull("sliding_window")) return absl::OkStatus();
  return fields.Error("use_sliding_window", "true: sliding windows are not supported");
}

// WindowRule::kWidth.
absl::Status CheckWindowWidth(const JsonFields& fields, const ModelConfig& config) {
  constexpr int64_t kAbsent = 4096;  // as transformers has it
  if (fields.IsNull("sliding_window")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t width, fields.IntOr("sliding_window", kAbsent, 1, kMaxInt32));
  if (width >= config.max_positions) return absl::OkStatus();
  return fields.Error(
      "sliding_window",
      absl::StrCat(width, fields.Find("sliding_window") == nullptr ? " (where it is absent)" : "",
                   " is below max_position_embeddings ", config.max_positions,
                   ", and sliding windows are not supported: set max_position_embeddings to ", width,
                   " if no prompt and response are longer together, or sliding_window to null if the model was trained "
                   "without one"));
}

absl::Status CheckSlidingWindow(const JsonFields& fields, WindowRule rule, const ModelConfig& config) {
  RETURN_IF_ERROR(CheckLayerTypes(fields, config));
  switch (rule) {
    case WindowRule::kAnyWidth:
      return RefusePresent(fields, "sliding_window", "a sliding window");
    case WindowRule::kFlag:
      return CheckWindowFlag(fields, config);
    case WindowRule::kFlagOfAllLayers:
      return CheckWindowOfAllLayers(fields);
    case WindowRule::kWidth:
      return CheckWindowWidth(fields, config);
  }
  return absl::OkStatus();
}

// A tokenizer may have code of its own: it is copied into exports, and nothing here runs it.
absl::Status CheckCode(const JsonFields& fields) {
  const json* map = fields.Find("auto_map");
  if (map == nullptr || !map->is_object()) return absl::OkStatus();
  for (const auto& [name, code] : map->items()) {
    if (!name.starts_with("AutoModel")) continue;
    return fields.Error("auto_map",
                        absl::StrCat(name, " is ", JsonExcerpt(code),
                                     ": a model's own code is not run; remove the entry if the architecture "
                                     "that transformers has is meant"));
  }
  return absl::OkStatus();
}

// transformers attends to both sides where it is false or null.
absl::Status CheckCausal(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const bool causal, fields.BoolOr("is_causal", true));
  if (causal && !fields.IsNull("is_causal")) return absl::OkStatus();
  return fields.Error("is_causal", causal ? "null, as false, is not supported"
                                          : "false is not supported: every token "
                                            "attends to those before it");
}

absl::Status CheckUnsupported(const JsonFields& fields, const Family& family, const ModelConfig& config) {
  if (const json* activation = fields.Find("hidden_act"); activation != nullptr && *activation != "silu") {
    return fields.Error("hidden_act", absl::StrCat(JsonExcerpt(*activation), ": only \"silu\" is supported"));
  }
  for (const char* name : {"attention_dropout", "hidden_dropout", "hidden_dropout_prob", "dropout", "resid_pdrop",
                           "embd_pdrop", "attn_pdrop", "classifier_dropout"}) {
    RETURN_IF_ERROR(RefusePositive(fields, name));
  }
  RETURN_IF_ERROR(RefusePresent(fields, "quantization_config", "a quantized checkpoint"));
  RETURN_IF_ERROR(RefusePresent(fields, "compression_config", "a compressed checkpoint"));
  RETURN_IF_ERROR(RefusePresent(fields, "transformers_weights", "another file of weights than model.safetensors"));
  RETURN_IF_ERROR(RefusePresent(fields, "per_layer_config", "a layer of its own configuration"));
  RETURN_IF_ERROR(RefusePresent(fields, "configuration_files", "another file in the place of config.json"));
  RETURN_IF_ERROR(CheckCode(fields));
  RETURN_IF_ERROR(CheckCausal(fields));
  if (!family.qkv_bias) RETURN_IF_ERROR(RefuseTrue(fields, "attention_bias"));
  RETURN_IF_ERROR(RefuseTrue(fields, "mlp_bias"));
  ASSIGN_OR_RETURN(const double rotary_factor, fields.NumberOr("partial_rotary_factor", 1));
  if (rotary_factor != 1) return fields.Error("partial_rotary_factor", "only 1 is supported");
  return CheckSlidingWindow(fields, family.window, config);
}

absl::StatusOr<Llama3RopeScaling> ParseLlama3(const JsonFields& fields, const JsonFields& rope) {
  Llama3RopeScaling scaling;
  ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
  ASSIGN_OR_RETURN(scaling.low_freq_factor, rope.Number("low_freq_factor"));
  ASSIGN_OR_RETURN(scaling.high_freq_factor, rope.Number("high_freq_factor"));
  constexpr char kOriginal[] = "original_max_position_embeddings";
  const bool of_rope = rope.Find(kOriginal) != nullptr;
  if (of_rope && fields.Find(kOriginal) != nullptr && *fields.Find(kOriginal) != *rope.Find(kOriginal)) {
    return fields.Error(kOriginal, "differs from that of the RoPE scaling; keep one of them");
  }
  ASSIGN_OR_RETURN(scaling.original_max_positions, (of_rope ? rope : fields).Int(kOriginal, 1, kMaxInt32));
  if (!(scaling.factor >= 1)) return rope.Error("factor", absl::StrCat(scaling.factor, ": must be at least 1"));
  if (!(scaling.low_freq_factor > 0)) return rope.Error("low_freq_factor", "must be above 0");
  if (!(scaling.high_freq_factor > scaling.low_freq_factor)) {
    return rope.Error("high_freq_factor", "must be above low_freq_factor");
  }
  return scaling;
}

// transformers 5 writes rope_parameters {rope_type, rope_theta, ...}, 4 wrote rope_theta and rope_scaling {rope_type or
// type, ...} apart.
absl::Status ParseRope(const JsonFields& fields, ModelConfig& config) {
  const bool has_parameters = fields.Find("rope_parameters") != nullptr;
  const char* name = has_parameters ? "rope_parameters" : "rope_scaling";
  if (has_parameters && fields.Find("rope_scaling") != nullptr &&
      *fields.Find("rope_parameters") != *fields.Find("rope_scaling")) {
    return fields.Error("rope_scaling", "differs from rope_parameters; keep one of them");
  }
  ASSIGN_OR_RETURN(config.rope_theta, fields.NumberOr("rope_theta", 10000));
  if (fields.Find(name) != nullptr) {
    ASSIGN_OR_RETURN(const JsonFields rope, fields.Object(name));
    ASSIGN_OR_RETURN(config.rope_theta, rope.NumberOr("rope_theta", config.rope_theta));
    ASSIGN_OR_RETURN(const std::string legacy_type, rope.StringOr("type", "default"));
    ASSIGN_OR_RETURN(const std::string rope_type, rope.StringOr("rope_type", legacy_type));
    ASSIGN_OR_RETURN(const double rotary_factor, rope.NumberOr("partial_rotary_factor", 1));
    if (rotary_factor != 1) return rope.Error("partial_rotary_factor", "only 1 is supported");
    for (const char* layer_type : {"full_attention", "sliding_attention"}) {
      if (rope.Find(layer_type) != nullptr) return rope.Error(layer_type, "RoPE by layer type is not supported");
    }
    if (rope_type == "llama3") {
      ASSIGN_OR_RETURN(config.rope_scaling, ParseLlama3(fields, rope));
    } else if (rope_type != "default") {
      return rope.Error(rope.Find("rope_type") != nullptr ? "rope_type" : "type",
                        absl::StrCat(JsonExcerpt(rope_type), " is not supported: only \"default\" and \"llama3\" are"));
    }
  }
  if (!(config.rope_theta > 0)) return fields.Error("rope_theta", "must be above 0");
  return absl::OkStatus();
}

absl::Status ParseHeads(const JsonFields& fields, const Family& family, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.num_heads, fields.Int("num_attention_heads", 1, 1 << 16));
  if (family.kv_heads_optional || fields.IsNull("num_key_value_heads")) {
    ASSIGN_OR_RETURN(config.num_kv_heads, fields.IntOr("num_key_value_heads", config.num_heads, 1, 1 << 16));
  } else {
    ASSIGN_OR_RETURN(config.num_kv_heads, fields.Int("num_key_value_heads", 1, 1 << 16));
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return fields.Error("num_key_value_heads",
                        absl::StrCat(config.num_kv_heads, " does not divide num_attention_heads ", config.num_heads));
  }
  if (fields.Find("head_dim") != nullptr) {
    ASSIGN_OR_RETURN(config.head_size, fields.Int("head_dim", 2, 1 << 12));
  } else if (family.head_size_default > 0 && !fields.IsNull("head_dim")) {
    config.head_size = family.head_size_default;
  } else if (config.hidden_size % config.num_heads != 0) {
    return fields.Error("num_attention_heads", absl::StrCat(config.num_heads, " does not divide hidden_size ",
                                                            config.hidden_size, ", and head_dim is missing"));
  } else {
    config.head_size = config.hidden_size / config.num_heads;
  }
  if (config.head_size % 2 != 0) {
    return fields.Error("head_dim", absl::StrCat(config.head_size, " is odd: rotary positions need pairs"));
  }
  return absl::OkStatus();
}

// transformers 4 wrote num_experts, 5 writes num_local_experts and reads either.
absl::Status ParseExpertCount(const JsonFields& fields, Experts& experts) {
  const json *four = fields.Find("num_experts"), *five = fields.Find("num_local_experts");
  if (four != nullptr && five != nullptr && *four != *five) {
    return fields.Error("num_experts", "differs from num_local_experts, which means the same; keep one of them");
  }
  if (five == nullptr) {
    ASSIGN_OR_RETURN(experts.count, fields.Int("num_experts", 1, 1 << 12));
  } else {
    ASSIGN_OR_RETURN(experts.count, fields.Int("num_local_experts", 1, 1 << 12));
  }
  return absl::OkStatus();
}

// Every layer has experts, and no loss of their router's.
absl::Status ParseExperts(const JsonFields& fields, ModelConfig& config) {
  Experts& experts = *config.experts;
  RETURN_IF_ERROR(ParseExpertCount(fields, experts));
  if (experts.count * config.num_layers > kMaxExpertsOfAllLayers) {
    return fields.Error("num_experts", absl::StrCat(experts.count, " in each of ", config.num_layers,
                                                    " layers are more than ", kMaxExpertsOfAllLayers, " in all"));
  }
  ASSIGN_OR_RETURN(experts.per_token, fields.Int("num_experts_per_tok", 1, 1 << 12));
  if (experts.per_token > experts.count) {
    return fields.Error("num_experts_per_tok", absl::StrCat(experts.per_token, " is more than the ", experts.count,
                                                            " experts that there are"));
  }
  ASSIGN_OR_RETURN(experts.weights_sum_to_one, fields.BoolOr("norm_topk_prob", false));
  ASSIGN_OR_RETURN(config.ffn_size, fields.Int("moe_intermediate_size", 1, 1 << 22));
  ASSIGN_OR_RETURN(const int64_t step, fields.IntOr("decoder_sparse_step", 1, 0, kMaxInt32));
  if (step != 1) {
    return fields.Error("decoder_sparse_step",
                        absl::StrCat(step, ": layers without experts among those with them are not supported, use 1"));
  }
  const json* dense_layers = fields.Find("mlp_only_layers");
  if (dense_layers != nullptr && !(dense_layers->is_array() && dense_layers->empty())) {
    return fields.Error("mlp_only_layers",
                        "names layers without experts; such layers among those with them are not supported, use []");
  }
  ASSIGN_OR_RETURN(const bool asks_for_router_loss, fields.BoolOr("output_router_logits", false));
  if (!asks_for_router_loss) return absl::OkStatus();
  return fields.Error("output_router_logits",
                      "true asks for the router's auxiliary loss, which is not supported: set it to false to train "
                      "without it");
}

absl::Status ParseSizes(const JsonFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.vocab_size, fields.Int("vocab_size", 1, kMaxInt32));
  ASSIGN_OR_RETURN(config.hidden_size, fields.Int("hidden_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(config.num_layers, fields.Int("num_hidden_layers", 1, 1 << 14));
  if (config.experts) {
    RETURN_IF_ERROR(ParseExperts(fields, config));
  } else {
    ASSIGN_OR_RETURN(config.ffn_size, fields.Int("intermediate_size", 1, 1 << 22));
  }
  ASSIGN_OR_RETURN(config.max_positions, fields.Int("max_position_embeddings", 1, kMaxInt32));
  ASSIGN_OR_RETURN(config.rms_norm_eps, fields.NumberOr("rms_norm_eps", 1e-6));
  if (!(config.rms_norm_eps >= 0 && config.rms_norm_eps < 1)) {
    return fields.Error("rms_norm_eps", absl::StrCat(config.rms_norm_eps, ": must be in [0, 1)"));
  }
  ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.BoolOr("tie_word_embeddings", false));
  return absl::OkStatus();
}

}  // namespace

void ModelConfig::SetFamily(const Family& family) {
  model_type = family.model_type;
  qkv_bias = family.qkv_bias;
  qk_norm = family.qk_norm;
  if (!family.experts) experts.reset();
  if (family.experts && !experts) experts = Experts{};
}

int64_t ModelConfig::num_parameters() const { return static_cast<int64_t>(CountParameters(*this)); }

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text) {
  ASSIGN_OR_RETURN(const json root, ParseJson(text, {.max_depth = 32, .max_values = 1'000'000}));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("the config is ", JsonTypeName(root), ", not an object"));
  }
  const JsonFields fields(root, "");
  ModelConfig config;
  ASSIGN_OR_RETURN(const Family* family, ParseFamily(fields));
  config.SetFamily(*family);
  RETURN_IF_ERROR(CheckArchitectures(fields, *family));
  RETURN_IF_ERROR(ParseSizes(fields, config));
  RETURN_IF_ERROR(ParseHeads(fields, *family, config));
  RETURN_IF_ERROR(ParseRope(fields, config));
  RETURN_IF_ERROR(CheckUnsupported(fields, *family, config));
  if (CountParameters(config) > static_cast<double>(kMaxParameters)) {
    return fields.Error("hidden_size", absl::StrCat("the sizes make ", CountParameters(config),
                                                    " parameters, more than any machine holds"));
  }
  return config;
}

}  // namespace stemma
