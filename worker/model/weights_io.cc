#include "worker/model/weights_io.h"

#include <optional>
#include <unordered_map>
#include <utility>

#include "common/base/dtype_names.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "worker/model/tensor_reader.h"
#include "worker/optim/shards.h"
#include "worker/optim/states.h"

namespace stemma::worker {
namespace {

// Reads a tensor into its place in the weights. Whole rows are read, also where the box has some of their columns only:
// one read a piece.
absl::Status LoadTensor(const FileTensor& tensor, const HfTensor& place, const Weights& weights) {
  const int64_t columns = tensor.columns();
  const TensorBox& box = place.box;
  const ReadRange range = {.begin = box.row_begin * columns,
                           .count = box.rows() * columns,
                           .unit = columns,
                           .held = weights.run_dtype,
                           .advice = "weights must be finite: write the model again from a checkpoint that is sound"};
  return ReadTensor(tensor, range, [&](int64_t first, const at::Tensor& values) {
    const at::Tensor rows = values.view({-1, columns});
    weights.StoreRows(place, first / columns - box.row_begin, rows.slice(1, box.column_begin, box.column_end));
  });
}

// Reads every tensor of `weights` from the directory's files.
absl::Status ReadWeights(const ModelDirectory& directory, const Weights& weights) {
  std::unordered_map<std::string, const HfTensor*> wanted;
  for (const HfTensor& t : weights.hf_tensors) wanted[t.name] = &t;
  for (const WeightFile& weight_file : directory.shards) {
    ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(weight_file.path));
    for (const safetensors::TensorEntry& entry : weight_file.header.tensors) {
      const auto it = wanted.find(entry.name);
      if (it == wanted.end()) continue;
      const HfTensor& tensor = *it->second;
      RETURN_IF_ERROR(LoadTensor({weight_file.path, file, entry}, tensor, weights));
      wanted.erase(it);
    }
  }
  if (wanted.empty()) return absl::OkStatus();
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
  Weights weights = MakeWeights(shard, run_dtype, device);
  const OptimizerShards shards(ElementsOf(weights.parameters), states.ranks);
  RETURN_IF_ERROR(MakeStates(weights.parameters, states.residency, shards.owned(states.rank)));
  RETURN_IF_ERROR(ReadWeights(directory, weights));
  return weights;
}

absl::StatusOr<Weights> LoadFrozenWeights(const ModelDirectory& directory, const ModelShard& shard,
                                          at::ScalarType run_dtype, at::Device device) {
  Weights weights = MakeWeights(shard, run_dtype, device, Gradients::kNone);
  RETURN_IF_ERROR(ReadWeights(directory, weights));
  return weights;
}

}  // namespace stemma::worker
