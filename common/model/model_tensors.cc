#include "common/model/model_tensors.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace stemma {
namespace {

using enum TensorRole;
using enum TensorKind;
using enum TensorCut;

struct Row {
  TensorRole role;
  std::string_view name;  // of a layer's tensor: what follows "model.layers.3."
  // A dimension is the product of its letters: H query heads, K K/V heads, E head size, D model, F ffn, V vocabulary.
  std::string_view rows, columns;  // columns "": the tensor is a vector
  TensorKind kind;
  TensorCut cut = kReplicated;
  bool ModelConfig::*only_if = nullptr;
  bool ModelConfig::*unless = nullptr;
};

// In Hugging Face's module order, the layers' rows together.
constexpr std::array kRows = {
    Row{kEmbedding, "model.embed_tokens.weight", "V", "D", kMatrix, kVocabulary},
    Row{kQkv, "self_attn.q_proj.weight", "HE", "D", kMatrix, kColumn},
    Row{kQkvBias, "self_attn.q_proj.bias", "HE", "", kBias, kColumn, &ModelConfig::qkv_bias},
    Row{kQkv, "self_attn.k_proj.weight", "KE", "D", kMatrix, kKvColumn},
    Row{kQkvBias, "self_attn.k_proj.bias", "KE", "", kBias, kKvColumn, &ModelConfig::qkv_bias},
    Row{kQkv, "self_attn.v_proj.weight", "KE", "D", kMatrix, kKvColumn},
    Row{kQkvBias, "self_attn.v_proj.bias", "KE", "", kBias, kKvColumn, &ModelConfig::qkv_bias},
    Row{kO, "self_attn.o_proj.weight", "D", "HE", kMatrix, kRow},
    Row{kQNorm, "self_attn.q_norm.weight", "E", "", kNorm, kReplicated, &ModelConfig::qk_norm},
    Row{kKNorm, "self_attn.k_norm.weight", "E", "", kNorm, kReplicated, &ModelConfig::qk_norm},
    Row{kGateUp, "mlp.gate_proj.weight", "F", "D", kMatrix, kColumn},
    Row{kGateUp, "mlp.up_proj.weight", "F", "D", kMatrix, kColumn},
    Row{kDown, "mlp.down_proj.weight", "D", "F", kMatrix, kRow},
    Row{kNorm1, "input_layernorm.weight", "D", "", kNorm},
    Row{kNorm2, "post_attention_layernorm.weight", "D", "", kNorm},
    Row{kFinalNorm, "model.norm.weight", "D", "", kNorm},
    Row{kHead, "lm_head.weight", "V", "D", kMatrix, kVocabulary, nullptr, &ModelConfig::tie_word_embeddings},
};

constexpr std::array<std::string_view, kNumTensorRoles> kRoleNames = {
    "embedding", "norm1", "qkv", "qkv_bias", "q_norm", "k_norm", "o", "norm2", "gate_up", "down", "final_norm", "head"};
static_assert(static_cast<size_t>(kHead) + 1 == kRoleNames.size());

bool IsOfALayer(const Row& row) { return row.role >= kNorm1 && row.role <= kDown; }

bool IsIn(const Row& row, const ModelConfig& config) {
  return (row.only_if == nullptr || config.*row.only_if) && (row.unless == nullptr || !(config.*row.unless));
}

int64_t SizeOf(std::string_view letters, const ModelConfig& config) {
  int64_t size = 1;
  for (const char letter : letters) {
    switch (letter) {
      case 'H':
        size *= config.num_heads;
        break;
      case 'K':
        size *= config.num_kv_heads;
        break;
      case 'E':
        size *= config.head_size;
        break;
      case 'D':
        size *= config.hidden_size;
        break;
      case 'F':
        size *= config.ffn_size;
        break;
      case 'V':
        size *= config.vocab_size;
        break;
      default:
        LOG(FATAL) << "no size has the letter " << letter;
    }
  }
  return size;
}

TensorSpec MakeSpec(const Row& row, int64_t layer, const ModelConfig& config) {
  TensorSpec spec{
      .name = layer < 0 ? std::string(row.name) : absl::StrCat("model.layers.", layer, ".", std::string(row.name)),
      .shape = {SizeOf(row.rows, config)},
      .role = row.role,
      .layer = layer,
      .kind = row.kind,
      .cut = row.cut};
  if (!row.columns.empty()) spec.shape.push_back(SizeOf(row.columns, config));
  return spec;
}

}  // namespace

std::string_view TensorRoleName(TensorRole role) { return kRoleNames[static_cast<size_t>(role)]; }

std::vector<TensorSpec> ModelTensors(const ModelConfig& config) {
  std::vector<TensorSpec> tensors;
  const auto add = [&](const Row& row, int64_t layer) {
    if (IsIn(row, config)) tensors.push_back(MakeSpec(row, layer, config));
  };
  for (const auto* row = kRows.begin(); row != kRows.end();) {
    if (!IsOfALayer(*row)) {
      add(*row++, /*layer=*/-1);
      continue;
    }
    const auto* end = std::find_if_not(row, kRows.end(), IsOfALayer);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      for (const auto* of_layer = row; of_layer != end; ++of_layer) add(*of_layer, layer);
    }
    row = end;
  }
  return tensors;
}

std::optional<TensorSpec> TiedHead(const ModelConfig& config) {
  if (!config.tie_word_embeddings) return std::nullopt;
  const auto* head = std::find_if(kRows.begin(), kRows.end(), [](const Row& row) { return row.role == kHead; });
  CHECK(head != kRows.end());
  return MakeSpec(*head, /*layer=*/-1, config);
}

double CountParameters(const ModelConfig& config) {
  double count = 0;
  for (const Row& row : kRows) {
    if (!IsIn(row, config)) continue;
    const double size =
        static_cast<double>(SizeOf(row.rows, config)) * static_cast<double>(SizeOf(row.columns, config));
    count += size * static_cast<double>(IsOfALayer(row) ? config.num_layers : 1);
  }
  return count;
}

}  // namespace stemma
