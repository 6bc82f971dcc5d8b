#include "worker/model/weights_export.h"

#include <glog/logging.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/model/model_files.h"
#include "worker/model/tensor_reader.h"

namespace stemma::worker {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using safetensors::TensorEntry;
using TensorsByName = std::unordered_map<std::string, const HfTensor*>;

constexpr int64_t kCopiedBytes = int64_t{64} << 20;  // at a time

// The exporter copies what the weights do not name as the source has it: of a part it would write old weights.
void CheckWhole(const Weights& weights, const ModelConfig& config) {
  const std::vector<LocalTensor> whole = LocalTensors(WholeModel(config));
  CHECK_EQ(weights.hf_tensors.size(), whole.size()) << "an export takes the weights of the whole model";
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(weights.hf_tensors[i].box == whole[i].box) << whole[i].spec.name << ": an export takes the whole tensor";
  }
}

TensorsByName ByName(const Weights& weights) {
  TensorsByName by_name;
  const std::optional<TensorSpec> tied_head = TiedHead(weights.config);
  for (const HfTensor& t : weights.hf_tensors) {
    by_name[t.name] = &t;
    if (tied_head && t.parameter == weights.head) by_name[tied_head->name] = &t;
  }
  return by_name;
}

// Returns the header for these tensors, which are changed where their dtype is.
std::string HeaderFor(std::vector<TensorEntry>& tensors, const safetensors::Header& loaded, const TensorsByName& held,
                      std::optional<Dtype> dtype) {
  bool changed = false;
  for (TensorEntry& t : tensors) {
    if (!dtype.has_value() || !held.contains(t.name)) continue;
    changed |= t.dtype != *dtype;
    t.dtype = *dtype;
  }
  if (changed) return safetensors::MakeHeader(tensors, {{"format", "pt"}});
  const uint64_t size = loaded.raw.size();
  std::string header(reinterpret_cast<const char*>(&size),
                     sizeof(size));  // little-endian, as the format and x86 have it
  return header + loaded.raw;
}

// Appends the pieces of a tensor: `all` elements, or bytes, beginning with `begin`.
void AddPieces(ExportPiece piece, int64_t begin, int64_t all, int64_t at_most, std::vector<ExportPiece>& pieces) {
  for (int64_t done = 0; done < all; done += at_most) {
    piece.begin = begin + done;
    piece.count = std::min(at_most, all - done);
    pieces.push_back(piece);
  }
}

}  // namespace

absl::StatusOr<WeightsExport> WeightsExport::Make(const Weights& weights, const ModelDirectory& source,
                                                  const std::optional<std::string>& dtype) {
  CheckWhole(weights, source.config);
  std::optional<Dtype> export_dtype;
  if (dtype.has_value()) {
    ASSIGN_OR_RETURN(export_dtype, ParseFileDtype(*dtype));
  }
  const TensorsByName held = ByName(weights);
  WeightsExport result(source, export_dtype);
  for (const WeightFile& loaded : source.shards) {
    std::vector<TensorEntry> tensors = loaded.header.tensors;
    ExportFile& file = result.files_.emplace_back();
    file.name = loaded.file_name;
    file.source = loaded.path;
    file.header = HeaderFor(tensors, loaded.header, held, export_dtype);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto bytes = static_cast<int64_t>(tensors[i].end - tensors[i].begin);
      result.tensor_bytes_ += static_cast<uint64_t>(bytes);
      if (const auto it = held.find(tensors[i].name); it != held.end()) {
        ExportPiece piece{.tensor = it->second};
        ASSIGN_OR_RETURN(piece.dtype, TorchDtype(tensors[i].dtype));
        AddPieces(piece, 0, bytes / safetensors::DtypeBytes(tensors[i].dtype), kExportPieceElements, file.pieces);
      } else {
        AddPieces({}, static_cast<int64_t>(loaded.header.tensors[i].begin), bytes, kCopiedBytes, file.pieces);
      }
    }
  }
  return result;
}

absl::Status WeightsExport::WriteOtherFiles(const std::string& folder) const {
  for (const auto& [name, path] : source_->other_files) {
    ASSIGN_OR_RETURN(std::string content, ReadFile(path, kOtherFileBytesMax));
    if (dtype_.has_value() && (name == "config.json" || name == "model.safetensors.index.json")) {
      ASSIGN_OR_RETURN(content, name == "config.json" ? ConfigWithDtype(path, content, *dtype_)
                                                      : IndexWithTotalSize(path, content, tensor_bytes_));
    }
    RETURN_IF_ERROR(WriteFile(fs::path(folder) / name, content));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExportFileWriter> ExportFileWriter::Create(const ExportFile& file, const std::string& folder) {
  ASSIGN_OR_RETURN(RegularFile source, RegularFile::Open(file.source));
  ASSIGN_OR_RETURN(FileWriter writer, FileWriter::Create(fs::path(folder) / file.name));
  RETURN_IF_ERROR(writer.Write(file.header.data(), file.header.size()));
  return ExportFileWriter(std::move(source), std::move(writer));
}

absl::Status ExportFileWriter::Write(const ExportPiece& piece, const at::Tensor& values) {
  if (piece.tensor == nullptr) {
    std::string bytes(static_cast<size_t>(piece.count), '\0');
    RETURN_IF_ERROR(source_.ReadAt(static_cast<uint64_t>(piece.begin), bytes.data(), bytes.size()));
    return writer_.Write(bytes.data(), bytes.size());
  }
  CHECK_EQ(values.numel(), piece.count);
  const at::Tensor written = values.to(piece.dtype).to(at::kCPU).contiguous();
  return writer_.Write(written.data_ptr(), written.nbytes());
}

absl::StatusOr<uint64_t> ExportFileWriter::Close() {
  RETURN_IF_ERROR(writer_.Close());
  return writer_.bytes_written();
}

}  // namespace stemma::worker
