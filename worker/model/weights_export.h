// Weights to Hugging Face safetensors: what an export's files hold, and which of their bytes a rank writes. Who makes
// the folder, and how the ranks agree: worker/engine/rank_export.h, which calls this on the engine thread.
//
// An export keeps names, files, order and, unless another is asked for, each tensor's dtype: before any step it is byte
// for byte what was loaded. Config and tokenizer files are copied (with another dtype, the config's dtype is changed).
// Every rank writes the elements that it owns, at their places in the files (worker/model/file_pieces.h).
// Invariants: every rank computes the same files and headers; what all ranks of a mesh write holds every byte of every
// file once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_directory.h"
#include "common/model/safetensors.h"
#include "worker/model/file_pieces.h"
#include "worker/model/weights.h"

namespace stemma::worker {

// What a rank writes of the files.
struct ExportShare {
  const ParameterRanges& owned;  // of this rank's parameters, as OptimizerShards::owned
  bool first = true;             // it writes headers, and what is copied
};

// Elements of a parameter that are written in a dtype of the file's.
struct ExportPiece {
  FilePiece elements;
  at::ScalarType dtype = at::kFloat;
  safetensors::TensorEntry tensor;  // that they are of, in the export's file
};

// Bytes of a tensor that the model does not use (rotary buffers of old checkpoints), copied from the source's file.
struct CopiedBytes {
  uint64_t from = 0, to = 0, bytes = 0;
};

// What this rank writes of one file.
struct ExportFile {
  std::string name, source;  // in the export's folder; the path of the file that was loaded
  std::string header;        // the file's first bytes; empty: another rank's
  std::vector<ExportPiece> pieces;
  std::vector<CopiedBytes> copied;

  bool empty() const { return header.empty() && pieces.empty(); }
};

class WeightsExport {
 public:
  // REQUIRES: that `weights` and `source` outlive this. `weights`: this rank's boxes of the source's model; a box that
  // several ranks hold is written by the one that counts it. `dtype`: float32, float64, bfloat16, float16; absent: as
  // loaded, but a tied head as its embedding. Errors: InvalidArgument - unknown dtype.
  static absl::StatusOr<WeightsExport> Make(const Weights& weights, const ModelDirectory& source,
                                            const std::optional<std::string>& dtype, const ExportShare& share);

  const std::vector<ExportFile>& files() const { return files_; }
  // Writes what this rank has of a file, and returns its bytes once they are on the disk. Errors: UNSUPPORTED - a
  // weight is not finite in the file's dtype; SharedFile's.
  absl::StatusOr<uint64_t> Write(const ExportFile& file, const std::string& folder) const;
  // Errors: InvalidArgument - config or index are no objects any more; SharedFile's.
  absl::Status WriteOtherFiles(const std::string& folder) const;

 private:
  WeightsExport(const Weights& weights, const ModelDirectory& source, std::optional<safetensors::Dtype> dtype)
      : weights_(&weights), source_(&source), dtype_(dtype) {}

  const Weights* weights_;
  const ModelDirectory* source_;
  std::optional<safetensors::Dtype> dtype_;
  std::vector<ExportFile> files_;
  uint64_t tensor_bytes_ = 0;   // of all tensors, also those that are copied
  bool changes_bytes_ = false;  // whether a tensor has others than in the source
};

}  // namespace stemma::worker
