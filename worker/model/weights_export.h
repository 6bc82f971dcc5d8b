// Weights to Hugging Face safetensors: what an export's files hold, piece by piece, and the writing of one of them. Who
// writes which file, and where the values come from: worker/engine/rank_export.h, which calls this on the engine
// thread.
//
// An export keeps names, files, order and, unless another is asked for, each tensor's dtype: before any step it is byte
// for byte what was loaded. Config and tokenizer files are copied (with another dtype, the config's dtype is changed).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file.h"
#include "common/base/file_writer.h"
#include "common/model/model_directory.h"
#include "common/model/safetensors.h"
#include "worker/model/weights.h"

namespace stemma::worker {

inline constexpr int64_t kExportPieceElements = int64_t{8} << 20;

// What is written at a time: elements of a tensor that the weights hold, or bytes that are copied from the source's
// file, of a tensor that the model does not use (rotary buffers of old checkpoints).
struct ExportPiece {
  const HfTensor* tensor = nullptr;   // null: copied
  at::ScalarType dtype = at::kFloat;  // in the file, of `tensor`
  int64_t begin = 0, count = 0;       // elements of `tensor`, at most kExportPieceElements; or bytes
};

struct ExportFile {
  std::string name, source;  // in the export's folder; the path of the file that was loaded
  std::string header;        // what comes before the pieces
  std::vector<ExportPiece> pieces;
};

class WeightsExport {
 public:
  // REQUIRES: the weights of the whole model, and that they and `source` outlive this. `dtype`: float32, float64,
  // bfloat16, float16; absent: as loaded. Errors: InvalidArgument - unknown dtype.
  static absl::StatusOr<WeightsExport> Make(const Weights& weights, const ModelDirectory& source,
                                            const std::optional<std::string>& dtype);

  const std::vector<ExportFile>& files() const { return files_; }
  // Errors: InvalidArgument - config or index are no objects any more; the file system's.
  absl::Status WriteOtherFiles(const std::string& folder) const;

 private:
  WeightsExport(const ModelDirectory& source, std::optional<safetensors::Dtype> dtype)
      : source_(&source), dtype_(dtype) {}

  const ModelDirectory* source_;
  std::optional<safetensors::Dtype> dtype_;
  std::vector<ExportFile> files_;
  uint64_t tensor_bytes_ = 0;  // of all tensors, also those that are copied
};

// Writes the pieces of one file, in their order. Errors: the file system's.
class ExportFileWriter {
 public:
  static absl::StatusOr<ExportFileWriter> Create(const ExportFile& file, const std::string& folder);
  // `values`: the elements of the piece, of any dtype and device, flat; not read where the piece is copied.
  absl::Status Write(const ExportPiece& piece, const at::Tensor& values);
  // Returns the file's bytes.
  absl::StatusOr<uint64_t> Close();

 private:
  ExportFileWriter(RegularFile source, FileWriter writer) : source_(std::move(source)), writer_(std::move(writer)) {}

  RegularFile source_;
  FileWriter writer_;
};

}  // namespace stemma::worker
