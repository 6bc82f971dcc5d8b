#include "worker/checkpoint/checkpoint_layout.h"

#include <glog/logging.h>

#include <algorithm>
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

int64_t Columns(const TensorEntry& tensor) { return tensor.shape.size() > 1 ? tensor.shape[1] : 1; }

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

std::optional<OwnedPart> OwnedPartOf(const HfTensor& tensor, const Weights& weights, int64_t columns,
                                     const ParameterRanges& owned) {
  CHECK(tensor.box.column_begin == 0 && tensor.box.column_end == columns) << tensor.name << ": is cut by columns";
  CHECK_EQ(weights.at(tensor.parameter).weight.numel(), weights.at(tensor.parameter).weight.size(0) * columns);
  const auto range = std::lower_bound(owned.begin(), owned.end(), tensor.parameter,
                                      [](const ParameterRange& r, int parameter) { return r.parameter < parameter; });
  if (range == owned.end() || range->parameter != tensor.parameter) return std::nullopt;
  const int64_t tensor_first = tensor.row_begin * columns;
  const int64_t begin = std::max(tensor_first, range->begin), end = std::min(tensor.row_end * columns, range->end());
  if (begin >= end) return std::nullopt;
  return OwnedPart{tensor.box.row_begin * columns + begin - tensor_first, begin, end - begin};
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
      const std::optional<OwnedPart> part = OwnedPartOf(*it->second, weights, Columns(entry), owned);
      if (!part.has_value()) continue;
      const int64_t element_bytes = safetensors::DtypeBytes(entry.dtype);
      share.pieces.push_back({entry.begin + static_cast<uint64_t>(part->tensor_begin * element_bytes),
                              it->second->parameter, part->begin, part->count, bytes_before});
      bytes_before += part->count * element_bytes;
    }
    if (!share.front.empty() || !share.pieces.empty()) shares.push_back(std::move(share));
  }
  return shares;
}

int64_t PieceBytes(const std::vector<FileShare>& shares, int64_t element_bytes) {
  int64_t bytes = 0;
  for (const FileShare& share : shares) {
    for (const StatePiece& piece : share.pieces) bytes += piece.count * element_bytes;
  }
  return bytes;
}

}  // namespace stemma::worker
