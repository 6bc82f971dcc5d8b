#include "worker/checkpoint/checkpoint_layout.h"

#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/model_tensors.h"
#include "worker/model/model_files.h"

namespace stemma::worker {
namespace {

using safetensors::TensorEntry;

const char* MomentName(StateKind kind) { return kind == StateKind::kExpAvg ? "exp_avg-" : "exp_avg_sq-"; }

}  // namespace

std::string StateFileName(StateKind kind, const std::string& weight_file) {
  if (kind == StateKind::kMaster) return weight_file;
  return absl::StrCat(kMomentsFolder, "/", MomentName(kind), weight_file);
}

std::vector<StateFile> StateFiles(const ModelDirectory& source, safetensors::Dtype dtype) {
  std::set<std::string> used;
  for (const TensorSpec& spec : ModelTensors(source.config)) used.insert(spec.name);
  std::vector<StateFile> files;
  for (const StateKind kind : kStateKinds) {
    for (const WeightFile& loaded : source.shards) {
      StateFile file = {.name = StateFileName(kind, loaded.file_name), .kind = kind, .header = {}, .tensors = {}};
      for (const TensorEntry& tensor : loaded.header.tensors) {
        if (used.contains(tensor.name)) file.tensors.push_back({tensor.name, dtype, tensor.shape});
      }
      if (file.tensors.empty()) continue;
      file.header = safetensors::MakeHeader(file.tensors, {{"format", "pt"}});
      files.push_back(std::move(file));
    }
  }
  return files;
}

std::string CheckpointIndex(const std::vector<StateFile>& files) {
  std::map<std::string, std::string> file_of_tensor;
  uint64_t bytes = 0;
  for (const StateFile& file : files) {
    if (file.kind != StateKind::kMaster) continue;
    for (const TensorEntry& tensor : file.tensors) {
      file_of_tensor[tensor.name] = file.name;
      bytes += tensor.end - tensor.begin;
    }
  }
  return MakeIndex(file_of_tensor, bytes);
}

std::vector<FileShare> MakeShares(const std::vector<StateFile>& files, const Weights& weights,
                                  const ParameterRanges& owned, bool first) {
  std::unordered_map<std::string, const HfTensor*> held;
  for (const HfTensor& tensor : weights.hf_tensors) {
    if (tensor.counts_in_norm) held[tensor.name] = &tensor;  // one of the ranks that hold the same box writes it
  }
  std::vector<FileShare> shares;
  int64_t bytes_before = 0;
  for (const StateFile& file : files) {
    FileShare share = {.name = file.name, .kind = file.kind, .front = first ? file.header : "", .pieces = {}};
    for (const TensorEntry& entry : file.tensors) {
      const auto it = held.find(entry.name);
      if (it == held.end()) continue;
      for (const FilePiece& piece : FilePieces(*it->second, entry, owned)) {
        share.pieces.push_back({piece, bytes_before});
        bytes_before += static_cast<int64_t>(share.pieces.back().bytes.bytes());
      }
    }
    if (!share.front.empty() || !share.pieces.empty()) shares.push_back(std::move(share));
  }
  return shares;
}

int64_t PieceBytes(const std::vector<FileShare>& shares) {
  int64_t bytes = 0;
  for (const FileShare& share : shares) {
    for (const StatePiece& piece : share.pieces) bytes += static_cast<int64_t>(piece.bytes.bytes());
  }
  return bytes;
}

}  // namespace stemma::worker
