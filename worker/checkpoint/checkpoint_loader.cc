#include "worker/checkpoint/checkpoint_loader.h"

#include <glog/logging.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/weights_digest_text.h"
#include "common/model/config_difference.h"
#include "common/model/model_directory.h"
#include "common/model/model_tensors.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/model/file_pieces.h"
#include "worker/model/tensor_reader.h"
#include "worker/optim/shards.h"

namespace stemma::worker {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using safetensors::TensorEntry;

constexpr char kAdvice[] = "optimizer states must be finite: load an older checkpoint";

absl::Status CheckFolder(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus("open checkpoint", path, errno);
  if (S_ISLNK(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": it is a link"));
  if (!S_ISDIR(info.st_mode)) return absl::NotFoundError(absl::StrCat(path, ": not a directory"));
  return absl::OkStatus();
}

// Refuses links among the files that are read, which a checkpoint is saved without. Chat templates, which are not, may
// be links that somebody put here later.
absl::Status CheckNoLinks(const ModelDirectory& directory) {
  std::vector<std::string> names = {kConfigFile, kIndexFile};
  for (const WeightFile& file : directory.shards) names.push_back(file.file_name);
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(directory.path, "/", name);
    std::error_code error;
    if (fs::is_symlink(path, error)) return absl::InvalidArgumentError(absl::StrCat(path, ": it is a link"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelDirectory> OpenCheckpoint(const std::string& folder, const ModelConfig& config) {
  RETURN_IF_ERROR(CheckFolder(folder));
  RETURN_IF_ERROR(CheckFolder(absl::StrCat(folder, "/", kMomentsFolder)));
  ASSIGN_OR_RETURN(ModelDirectory directory, OpenModelWeights(folder));
  RETURN_IF_ERROR(CheckNoLinks(directory));
  const std::string difference = FirstDifference(directory.config, config);
  if (!difference.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/config.json: ", difference,
                                                   " is not that of the run's model: start the run with the "
                                                   "checkpoint's model, or give another model a --data of its own"));
  }
  return directory;
}

// The moments of one rank, file by file.
class MomentsLoader {
 public:
  MomentsLoader(const ModelDirectory& directory, Weights& weights, const ParameterRanges& owned)
      : directory_(directory), weights_(weights), owned_(owned) {
    for (const HfTensor& tensor : weights.hf_tensors) held_[tensor.name] = &tensor;
    for (const TensorSpec& spec : ModelTensors(directory.config)) used_.insert(spec.name);
  }

  absl::Status Load() {
    for (const StateKind kind : {StateKind::kExpAvg, StateKind::kExpAvgSq}) {
      for (const WeightFile& file : directory_.shards) RETURN_IF_ERROR(LoadFile(kind, file));
    }
    return absl::OkStatus();
  }

 private:
  // Loads what goes with the tensors of a weight file: the same ones, no more.
  absl::Status LoadFile(StateKind kind, const WeightFile& weight_file) {
    std::unordered_map<std::string, const TensorEntry*> wanted;
    for (const TensorEntry& entry : weight_file.header.tensors) {
      if (used_.contains(entry.name)) wanted[entry.name] = &entry;
    }
    if (wanted.empty()) return absl::OkStatus();
    const std::string path = absl::StrCat(directory_.path, "/", StateFileName(kind, weight_file.file_name));
    ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
    ASSIGN_OR_RETURN(const safetensors::Header header, safetensors::ReadHeader(path));
    for (const TensorEntry& entry : header.tensors) {
      const FileTensor tensor = {path, file, entry};
      const auto it = wanted.find(entry.name);
      if (it == wanted.end()) {
        return TensorError(tensor, absl::StrCat("does not belong to ", weight_file.file_name));
      }
      RETURN_IF_ERROR(CheckEntry(tensor, *it->second));
      if (const auto held = held_.find(entry.name); held != held_.end()) {
        RETURN_IF_ERROR(LoadTensor(kind, tensor, *held->second));
      }
      wanted.erase(it);
    }
    if (wanted.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", wanted.begin()->first, "\" is missing"));
  }

  absl::Status CheckEntry(const FileTensor& tensor, const TensorEntry& weight) {
    const TensorEntry& entry = tensor.entry;
    if (entry.shape != weight.shape) {
      return TensorError(tensor, absl::StrCat("has shape [", absl::StrJoin(entry.shape, ","), "], the weight's is [",
                                              absl::StrJoin(weight.shape, ","), "]"));
    }
    if (entry.dtype != Dtype::kF32 && entry.dtype != Dtype::kF64) {
      return TensorError(tensor, absl::StrCat("has dtype ", std::string(safetensors::DtypeName(entry.dtype)),
                                              "; optimizer states are F32 or F64"));
    }
    const bool held_in_f64 = weights_.accumulate_dtype == at::kDouble;
    if ((entry.dtype == Dtype::kF64) != held_in_f64 && !told_of_conversion_) {
      told_of_conversion_ = true;
      LOG(WARNING) << tensor.path << ": optimizer states in " << safetensors::DtypeName(entry.dtype)
                   << " are converted to the run's " << (held_in_f64 ? "F64" : "F32");
    }
    return absl::OkStatus();
  }

  absl::Status LoadTensor(StateKind kind, const FileTensor& tensor, const HfTensor& place) {
    Parameter& p = weights_.at(place.parameter);
    const at::Tensor& state = kind == StateKind::kExpAvg ? p.exp_avg : p.exp_avg_sq;
    const auto store = [&](int64_t first, const at::Tensor& values) {
      p.StateElements(state, first, values.numel()).copy_(values);
    };
    for (const FilePiece& piece : FilePieces(place, tensor.entry, owned_)) {
      RETURN_IF_ERROR(ReadTensor(tensor, piece, {.held = weights_.accumulate_dtype, .advice = kAdvice}, store));
    }
    return absl::OkStatus();
  }

  const ModelDirectory& directory_;
  Weights& weights_;
  const ParameterRanges& owned_;
  std::unordered_map<std::string, const HfTensor*> held_;  // by this rank
  std::unordered_set<std::string> used_;                   // by the model
  bool told_of_conversion_ = false;
};

}  // namespace

absl::StatusOr<Weights> LoadCheckpoint(const std::string& folder, const ModelShard& shard, at::ScalarType run_dtype,
                                       at::Device device, const StateOptions& states) {
  ASSIGN_OR_RETURN(const ModelDirectory directory, OpenCheckpoint(folder, shard.config));
  ASSIGN_OR_RETURN(Weights weights, LoadWeights(directory, shard, run_dtype, device, states));
  const OptimizerShards shards = ShardsOf(weights, states.owners.ranks);
  RETURN_IF_ERROR(MomentsLoader(directory, weights, shards.owned(states.owners.rank)).Load());
  return weights;
}

absl::StatusOr<Weights> LoadCheckpointWeights(const std::string& folder, const ModelShard& shard,
                                              at::ScalarType run_dtype, at::Device device,
                                              const ParameterOwners& owners) {
  ASSIGN_OR_RETURN(const ModelDirectory directory, OpenCheckpoint(folder, shard.config));
  return LoadFrozenWeights(directory, shard, run_dtype, device, owners);
}

absl::Status CheckWeightsDigest(const std::string& folder, const std::string& found, const std::string& saved) {
  if (!WeightsDiffer(saved, found)) return absl::OkStatus();
  return MakeError(Reason::kCorruptCheckpoint,
                   absl::StrCat(folder,
                                ": its weights are not those that were saved: `stemma checkpoint verify` says "
                                "which file changed"));
}

}  // namespace stemma::worker
