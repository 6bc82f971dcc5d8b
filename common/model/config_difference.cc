#include "common/model/config_difference.h"

#include <cstddef>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

namespace stemma {
namespace {

constexpr const char* kNames[] = {"model_type",
                                  "vocab_size",
                                  "hidden_size",
                                  "num_hidden_layers",
                                  "num_attention_heads",
                                  "num_key_value_heads",
                                  "head_dim",
                                  "intermediate_size",
                                  "max_position_embeddings",
                                  "rms_norm_eps",
                                  "rope_theta",
                                  "rope_scaling",
                                  "tie_word_embeddings",
                                  "attention_bias",
                                  "qk_norm",
                                  "num_experts",
                                  "num_experts_per_tok",
                                  "norm_topk_prob"};

// They bind every member: with one more they do not compile. `ep` is of what a rank has, and no model's.
auto ScalingFields(const std::optional<Llama3RopeScaling>& scaling) {
  const auto& [factor, low_freq_factor, high_freq_factor, original] = scaling.value_or(Llama3RopeScaling{});
  return std::tuple(scaling.has_value(), factor, low_freq_factor, high_freq_factor, original);
}

auto Fields(const ModelConfig& config) {
  const auto& [model_type, vocab, hidden, layers, heads, kv_heads, head, ffn, positions, eps, theta, scaling, tied,
               qkv_bias, qk_norm, experts] = config;
  const auto& [count, per_token, weights_sum_to_one, ep] = experts.value_or(Experts{0, 0, false});
  return std::tuple(model_type, vocab, hidden, layers, heads, kv_heads, head, ffn, positions, eps, theta,
                    ScalingFields(scaling), tied, qkv_bias, qk_norm, count, per_token, weights_sum_to_one);
}

}  // namespace

std::string FirstDifference(const ModelConfig& a, const ModelConfig& b) {
  const auto fields_a = Fields(a), fields_b = Fields(b);
  std::string first;
  const auto compare = [&]<size_t... I>(std::index_sequence<I...>) {
    ((first.empty() && std::get<I>(fields_a) != std::get<I>(fields_b) ? first = kNames[I] : first), ...);
  };
  static_assert(std::tuple_size_v<decltype(fields_a)> == std::size(kNames));
  compare(std::make_index_sequence<std::tuple_size_v<decltype(fields_a)>>());
  if (first == "intermediate_size" && a.experts) return "moe_intermediate_size";
  return first;
}

}  // namespace stemma
