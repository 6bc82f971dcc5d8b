#include "worker/model/weights_io.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "common/base/dtype_names.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/model/model_tensors.h"
#include "worker/model/file_pieces.h"
#include "worker/model/tensor_reader.h"
#include "worker/optim/adamw.h"
#include "worker/optim/shards.h"
#include "worker/optim/states.h"

namespace stemma::worker {
namespace {

constexpr char kAdvice[] = "weights must be finite: write the model again from a checkpoint that is sound";

// Compares the head that a tied model's files may hold with the embedding, which is trained and written as both. One
// that differs is of another model, whatever config.json says: transformers 4 takes the embedding, 5 the head.
absl::Status CheckTiedHead(const ModelDirectory& directory, const Weights& weights, const ParameterRanges& read) {
  const std::optional<TensorSpec> head = TiedHead(directory.config);
  const auto embedding = std::find_if(weights.hf_tensors.begin(), weights.hf_tensors.end(), [&](const HfTensor& t) {
    return t.parameter == weights.embedding && t.counts_in_norm;
  });
  if (!head || embedding == weights.hf_tensors.end()) return absl::OkStatus();
  for (const WeightFile& weight_file : directory.shards) {
    for (const safetensors::TensorEntry& entry : weight_file.header.tensors) {
      if (entry.name != head->name) continue;
      ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(weight_file.path));
      const FileTensor tensor = {weight_file.path, file, entry};
      bool same = true;
      const auto compare = [&](int64_t first, const at::Tensor& values) {
        const at::Tensor held = weights.at(weights.embedding).WeightElements(first, values.numel()).cpu();
        same = same && held.equal(values.to(held.scalar_type()));
      };
      for (const FilePiece& piece : FilePieces(*embedding, entry, read)) {
        RETURN_IF_ERROR(ReadTensor(tensor, piece, {.held = weights.run_dtype, .advice = kAdvice}, compare));
      }
      if (same) continue;
      return TensorError(tensor, absl::StrCat("differs from ", embedding->name, ", and config.json says that they are ",
                                              "one: set tie_word_embeddings to false there, or leave this one out"));
    }
  }
  return absl::OkStatus();
}

// Reads every tensor of `weights` from the directory's files; of sharded ones what this rank owns.
absl::Status ReadWeights(const ModelDirectory& directory, const Weights& weights, const ParameterOwners& owners) {
  const ParameterRanges read =
      weights.is_sharded() ? ShardsOf(weights, owners.ranks).owned(owners.rank) : AllRanges(weights.parameters);
  const ReadOptions options = {.held = weights.run_dtype, .advice = kAdvice};
  std::unordered_map<std::string, const HfTensor*> wanted;
  for (const HfTensor& t : weights.hf_tensors) wanted[t.name] = &t;
  for (const WeightFile& weight_file : directory.shards) {
    ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(weight_file.path));
    for (const safetensors::TensorEntry& entry : weight_file.header.tensors) {
      const auto it = wanted.find(entry.name);
      if (it == wanted.end()) continue;
      for (const FilePiece& piece : FilePieces(*it->second, entry, read)) {
        const auto store = [&](int64_t first, const at::Tensor& values) {
          weights.StoreElements(piece.parameter, first, values);
        };
        RETURN_IF_ERROR(ReadTensor({weight_file.path, file, entry}, piece, options, store));
      }
      wanted.erase(it);
    }
  }
  if (wanted.empty()) return CheckTiedHead(directory, weights, read);
  return absl::InvalidArgumentError(directory.path + ": tensor " + wanted.begin()->first + " is missing");
}

}  // namespace

absl::StatusOr<at::ScalarType> ParseRunDtype(const std::string& name) {
  const std::optional<RunDtype> dtype = FindRunDtype(name);
  if (dtype == RunDtype::kFp32) return at::kFloat;
  if (dtype == RunDtype::kFp64) return at::kDouble;
  if (dtype == RunDtype::kBf16) return at::kBFloat16;
  return absl::InvalidArgumentError("dtype: '" + name + "' is not one of fp32, fp64, bf16");
}

absl::StatusOr<Weights> LoadWeights(const ModelDirectory& directory, const ModelShard& shard, at::ScalarType run_dtype,
                                    at::Device device, const StateOptions& states) {
  Weights weights = MakeWeights(shard, run_dtype, device, Gradients::kMade, states.owners);
  const OptimizerShards shards = ShardsOf(weights, states.owners.ranks);
  RETURN_IF_ERROR(MakeStates(weights.parameters, states.residency, shards.owned(states.owners.rank), states.page_lock));
  RETURN_IF_ERROR(ReadWeights(directory, weights, states.owners));
  return weights;
}

absl::StatusOr<Weights> LoadFrozenWeights(const ModelDirectory& directory, const ModelShard& shard,
                                          at::ScalarType run_dtype, at::Device device, const ParameterOwners& owners) {
  Weights weights = MakeWeights(shard, run_dtype, device, Gradients::kNone, owners);
  RETURN_IF_ERROR(ReadWeights(directory, weights, owners));
  return weights;
}

}  // namespace stemma::worker
