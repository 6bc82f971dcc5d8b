// Which files a checkpoint has and which of their bytes each rank writes. Pure: headers and sizes in, lists out; reads
// no tensor and no file.
//
// The weights are a Hugging Face model: the source model's files by name, with the tensors that the model uses, holding
// the masters in the run's accumulate dtype. Beside them lie, for each of those files NAME, optim/exp_avg-NAME and
// optim/exp_avg_sq-NAME with the moments under the same tensor names. What a file is does not depend on the mesh, so a
// checkpoint is loaded by any number of ranks.
// Invariants: every rank computes the same files and headers; together the shares of all ranks hold every byte of every
// file once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_directory.h"
#include "common/model/safetensors.h"
#include "worker/model/file_pieces.h"
#include "worker/model/weights.h"
#include "worker/optim/ranges.h"

namespace stemma::worker {

inline constexpr char kMomentsFolder[] = "optim";
inline constexpr char kConfigFile[] = "config.json", kIndexFile[] = "model.safetensors.index.json";

enum class StateKind { kMaster, kExpAvg, kExpAvgSq };
inline constexpr StateKind kStateKinds[] = {StateKind::kMaster, StateKind::kExpAvg, StateKind::kExpAvgSq};

// Returns the name in the checkpoint's folder: of a master's file its own, of a moment's "optim/exp_avg-NAME".
std::string StateFileName(StateKind kind, const std::string& weight_file);

// One safetensors file.
struct StateFile {
  std::string name;  // in the checkpoint's folder
  StateKind kind = StateKind::kMaster;
  std::string header;
  std::vector<safetensors::TensorEntry> tensors;  // their places in the file

  uint64_t bytes() const { return tensors.back().end; }
};

// Returns the files, masters before moments. A source's file that holds no tensor of the model has none here.
std::vector<StateFile> StateFiles(const ModelDirectory& source, safetensors::Dtype dtype);

// Returns the content of the index that goes with the files.
std::string CheckpointIndex(const std::vector<StateFile>& files);

// What a rank writes of one tensor's state.
struct StatePiece : FilePiece {
  int64_t bytes_before = 0;  // in all pieces that this rank writes before this one
};

// What one rank writes of one file.
struct FileShare {
  std::string name;
  StateKind kind = StateKind::kMaster;
  std::string front;               // the file's first bytes: its header; empty: another rank's
  std::vector<StatePiece> pieces;  // ascending: each begins at or behind the end of the one before
};

// Returns the shares that hold something. `owned`: of this rank's parameters, as OptimizerShards::owned; a box that
// several ranks hold is in the shares of the one that counts it. `first`: whether this rank writes the headers.
std::vector<FileShare> MakeShares(const std::vector<StateFile>& files, const Weights& weights,
                                  const ParameterRanges& owned, bool first);

// Returns the bytes of all pieces, without the fronts.
int64_t PieceBytes(const std::vector<FileShare>& shares);

}  // namespace stemma::worker
