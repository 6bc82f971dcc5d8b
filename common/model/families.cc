#include "common/model/families.h"

#include <algorithm>
#include <array>

namespace stemma {
namespace {

constexpr std::array kFamilies = {
    Family{.model_type = "llama",
           .architecture = "LlamaForCausalLM",
           .models = "Llama 3.x",
           .kv_heads_optional = true,
           .written_false = {"attention_bias", "mlp_bias"}},
    Family{.model_type = "qwen2",
           .architecture = "Qwen2ForCausalLM",
           .models = "Qwen2, Qwen2.5",
           .qkv_bias = true,
           .window = WindowRule::kFlag,
           .written_false = {"use_sliding_window"}},
    Family{.model_type = "qwen3",
           .architecture = "Qwen3ForCausalLM",
           .models = "dense",
           .qk_norm = true,
           .head_size_default = 128,
           .window = WindowRule::kFlag,
           .written_false = {"attention_bias", "use_sliding_window"}},
    Family{.model_type = "qwen3_moe",
           .architecture = "Qwen3MoeForCausalLM",
           .models = "mixture of experts",
           .qk_norm = true,
           .experts = true,
           .window = WindowRule::kFlagOfAllLayers,
           .written_false = {"attention_bias", "use_sliding_window"}},
    Family{.model_type = "mistral",
           .architecture = "MistralForCausalLM",
           .models = "without a sliding window",
           .window = WindowRule::kWidth},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family* FindFamily(std::string_view model_type) {
  const auto* found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const Family& family) { return family.model_type == model_type; });
  return found == kFamilies.end() ? nullptr : found;
}

}  // namespace stemma
