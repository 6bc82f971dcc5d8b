#include "common/model/model_tensors.h"

#include <algorithm>
#include <array>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "glog/logging.h"

namespace stemma {
namespace {

using enum TensorRole;
using enum TensorKind;
using enum TensorCut;

struct Row {
  TensorRole role;
  // A layer's tensor has what follows "model.layers.3."; each expert has one, with its number in the place of the star.
  std::string_view name;
  // A dimension is the product of its letters: H query heads, K K/V heads, E head size, D model, F ffn, X experts, V
  // vocabulary.
  std::string_view rows, columns;  // columns "": the tensor is a vector
  TensorKind kind;
  TensorCut cut = kReplicated;
  bool (*is_in)(const ModelConfig& config) = [](const ModelConfig&) { return true; };
};

constexpr bool HasQkvBias(const ModelConfig& config) { return config.qkv_bias; }
constexpr bool HasQkNorm(const ModelConfig& config) { return config.qk_norm; }
constexpr bool HasOneMlp(const ModelConfig& config) { return !config.experts; }
constexpr bool HasExperts(const ModelConfig& config) { return config.experts.has_value(); }
constexpr bool HasOwnHead(const ModelConfig& config) { return !config.tie_word_embeddings; }

// In Hugging Face's module order, the layers' rows together.
constexpr std::array kRows = {
    Row{kEmbedding, "model.embed_tokens.weight", "V", "D", kMatrix, kVocabulary},
    Row{kQkv, "self_attn.q_proj.weight", "HE", "D", kMatrix, kColumn},
    Row{kQkvBias, "self_attn.q_proj.bias", "HE", "", kBias, kColumn, &HasQkvBias},
    Row{kQkv, "self_attn.k_proj.weight", "KE", "D", kMatrix, kKvColumn},
    Row{kQkvBias, "self_attn.k_proj.bias", "KE", "", kBias, kKvColumn, &HasQkvBias},
    Row{kQkv, "self_attn.v_proj.weight", "KE", "D", kMatrix, kKvColumn},
    Row{kQkvBias, "self_attn.v_proj.bias", "KE", "", kBias, kKvColumn, &HasQkvBias},
    Row{kO, "self_attn.o_proj.weight", "D", "HE", kMatrix, kRow},
    Row{kQNorm, "self_attn.q_norm.weight", "E", "", kNorm, kReplicated, &HasQkNorm},
    Row{kKNorm, "self_attn.k_norm.weight", "E", "", kNorm, kReplicated, &HasQkNorm},
    Row{kGateUp, "mlp.gate_proj.weight", "F", "D", kMatrix, kColumn, &HasOneMlp},
    Row{kGateUp, "mlp.up_proj.weight", "F", "D", kMatrix, kColumn, &HasOneMlp},
    Row{kDown, "mlp.down_proj.weight", "D", "F", kMatrix, kRow, &HasOneMlp},
    Row{kRouter, "mlp.gate.weight", "X", "D", kMatrix, kReplicated, &HasExperts},
    Row{kGateUp, "mlp.experts.*.gate_proj.weight", "F", "D", kMatrix, kColumn, &HasExperts},
    Row{kGateUp, "mlp.experts.*.up_proj.weight", "F", "D", kMatrix, kColumn, &HasExperts},
    Row{kDown, "mlp.experts.*.down_proj.weight", "D", "F", kMatrix, kRow, &HasExperts},
    Row{kNorm1, "input_layernorm.weight", "D", "", kNorm},
    Row{kNorm2, "post_attention_layernorm.weight", "D", "", kNorm},
    Row{kFinalNorm, "model.norm.weight", "D", "", kNorm},
    Row{kHead, "lm_head.weight", "V", "D", kMatrix, kVocabulary, &HasOwnHead},
};

constexpr std::array<std::string_view, kNumTensorRoles> kRoleNames = {
    "embedding", "norm1",  "qkv",     "qkv_bias", "q_norm",     "k_norm", "o",
    "norm2",     "router", "gate_up", "down",     "final_norm", "head"};
static_assert(static_cast<size_t>(kHead) + 1 == kRoleNames.size());

bool IsOfALayer(const Row& row) { return row.role >= kNorm1 && row.role <= kDown; }

bool IsOfAnExpert(const Row& row) { return row.name.find('*') != std::string_view::npos; }

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
      case 'X':
        size *= config.experts.value().count;
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

// `expert`: 0 where the row is of none.
std::string NameOf(const Row& row, int64_t layer, int64_t expert) {
  if (layer < 0) return std::string(row.name);
  const std::string name = absl::StrCat("model.layers.", layer, ".", std::string(row.name));
  return IsOfAnExpert(row) ? absl::StrReplaceAll(name, {{"*", absl::StrCat(expert)}}) : name;
}

TensorSpec MakeSpec(const Row& row, int64_t layer, int64_t expert, const ModelConfig& config) {
  TensorSpec spec{.name = NameOf(row, layer, expert),
                  .shape = {SizeOf(row.rows, config)},
                  .role = row.role,
                  .layer = layer,
                  .kind = row.kind,
                  .cut = row.cut,
                  .expert = IsOfAnExpert(row) ? expert : -1};
  if (!row.columns.empty()) spec.shape.push_back(SizeOf(row.columns, config));
  return spec;
}

using Rows = std::span<const Row>;

// Takes the rows from the first one on that are as it is in a property: they are repeated together.
Rows TakeAlike(Rows& rows, bool (*property)(const Row&)) {
  const bool first = property(rows.front());
  const auto end = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return property(row) != first; });
  const Rows alike(rows.begin(), end);
  rows = rows.subspan(alike.size());
  return alike;
}

int64_t RepeatsOf(const Row& row, const ModelConfig& config) {
  return IsOfAnExpert(row) && config.experts ? config.experts->held() : 1;
}

// Appends the tensors of one layer, or of none; of experts those of all, or of the one that is given.
void AddTensors(Rows rows, int64_t layer, const ModelConfig& config, std::optional<int64_t> one_expert,
                std::vector<TensorSpec>& tensors) {
  while (!rows.empty()) {
    const Rows alike = TakeAlike(rows, &IsOfAnExpert);
    const int64_t repeats = RepeatsOf(alike.front(), config), copies = one_expert ? repeats : 1;
    const int64_t first = one_expert.value_or(0);
    for (int64_t expert = first; expert < first + repeats / copies; ++expert) {
      for (const Row& row : alike) {
        if (!row.is_in(config)) continue;
        tensors.push_back(MakeSpec(row, layer, expert, config));
        tensors.back().copies = copies;
      }
    }
  }
}

std::vector<TensorSpec> ListTensors(const ModelConfig& config, std::optional<int64_t> one_expert) {
  std::vector<TensorSpec> tensors;
  for (Rows rows = kRows; !rows.empty();) {
    const Rows alike = TakeAlike(rows, &IsOfALayer);
    if (!IsOfALayer(alike.front())) {
      AddTensors(alike, /*layer=*/-1, config, one_expert, tensors);
      continue;
    }
    for (int64_t layer = 0; layer < config.num_layers; ++layer) AddTensors(alike, layer, config, one_expert, tensors);
  }
  return tensors;
}

}  // namespace

std::string_view TensorRoleName(TensorRole role) { return kRoleNames[static_cast<size_t>(role)]; }

std::vector<TensorSpec> ModelTensors(const ModelConfig& config) { return ListTensors(config, std::nullopt); }

std::vector<TensorSpec> TensorsOfOneExpert(const ModelConfig& config, int64_t expert) {
  return ListTensors(config, expert);
}

std::optional<TensorSpec> TiedHead(const ModelConfig& config) {
  if (!config.tie_word_embeddings) return std::nullopt;
  const auto* head = std::find_if(kRows.begin(), kRows.end(), [](const Row& row) { return row.role == kHead; });
  CHECK(head != kRows.end());
  return MakeSpec(*head, /*layer=*/-1, /*expert=*/0, config);
}

double CountParameters(const ModelConfig& config) {
  double count = 0;
  for (const Row& row : kRows) {
    if (!row.is_in(config)) continue;
    const double size =
        static_cast<double>(SizeOf(row.rows, config)) * static_cast<double>(SizeOf(row.columns, config));
    const auto repeats = static_cast<double>(RepeatsOf(row, config));
    count += size * repeats * static_cast<double>(IsOfALayer(row) ? config.num_layers : 1);
  }
  return count;
}

}  // namespace stemma
