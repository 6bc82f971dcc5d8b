// The tensors of a model: one row says a tensor's Hugging Face name, its shape, which parameter holds it and how tensor
// parallelism cuts it. Checking a model directory, loading, export, `stemma model init` and the count of parameters all
// follow from this table. Torch-free.
//
// Tensors of the same role and layer are rows of one parameter, in the table's order: q, k and v read the same input,
// so one product computes them. Experts, too, are rows of one parameter, one expert's gate and up after the other's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_config.h"

namespace stemma {

// A parameter of the model, in the order in which a forward reads them; the optimizer's order too. Those from kNorm1 to
// kDown exist once per layer.
enum class TensorRole {
  kEmbedding,
  kNorm1,
  kQkv,
  kQkvBias,
  kQNorm,
  kKNorm,
  kO,
  kNorm2,
  kRouter,
  kGateUp,
  kDown,
  kFinalNorm,
  kHead
};
inline constexpr int kNumTensorRoles = 13;

// "qkv", "gate_up", ...
std::string_view TensorRoleName(TensorRole role);

// What kind of numbers a tensor holds: how `stemma model init` draws them.
enum class TensorKind { kMatrix, kBias, kNorm };

// The dimension that tensor parallelism divides among its ranks. Each rank keeps whole heads, and q, k and v are cut
// apart, so that a rank's rows of a fused parameter are its rows of each tensor.
enum class TensorCut {
  kReplicated,  // every rank has the whole tensor
  kColumn,      // dimension 0: a rank computes some outputs of the product
  kKvColumn,    // as kColumn, by K/V heads: where there are fewer than ranks, neighbours have the same head
  kRow,         // dimension 1: a rank reads some inputs, and the ranks' products are summed
  kVocabulary   // dimension 0: a rank has some tokens' rows
};

struct TensorSpec {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kEmbedding;
  int64_t layer = -1;  // -1: outside of the layers
  TensorKind kind = TensorKind::kMatrix;
  TensorCut cut = TensorCut::kReplicated;
  int64_t expert = -1;  // -1: of none
  int64_t copies = 1;   // of TensorsOfOneExpert: how many experts of the layer have one like it
};

// Every tensor that a checkpoint of this model holds, in Hugging Face's module order. Tied: no lm_head.weight.
std::vector<TensorSpec> ModelTensors(const ModelConfig& config);

// The same with one expert's tensors in the place of those of all experts of a layer, which are alike: for sums over
// tensors, of which 128 experts have 384 in each layer.
std::vector<TensorSpec> TensorsOfOneExpert(const ModelConfig& config, int64_t expert = 0);

// The head of a tied model: some checkpoints store the embedding a second time under its name. Absent for a model that
// is not tied.
std::optional<TensorSpec> TiedHead(const ModelConfig& config);

// The sum of the tensors' sizes. A double, so that sizes that no machine holds do not overflow; exact below 2^53.
double CountParameters(const ModelConfig& config);

}  // namespace stemma
