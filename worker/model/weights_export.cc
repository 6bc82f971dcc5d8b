#include "worker/model/weights_export.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/shared_file.h"
#include "common/base/status_macros.h"
#include "common/model/model_tensors.h"
#include "worker/backend/cpu/finite.h"
#include "worker/model/model_files.h"
#include "worker/model/tensor_reader.h"

namespace stemma::worker {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using safetensors::TensorEntry;

constexpr int64_t kWrittenElements = int64_t{8} << 20;  // converted and written at a time
constexpr uint64_t kCopiedBytes = uint64_t{64} << 20;   // copied at a time

// The tensors that the model uses, and the box of each that this rank writes; null: another rank writes it.
using TensorsByName = std::unordered_map<std::string, const HfTensor*>;

// A tied model's head, where its files have one, is the embedding.
TensorsByName ByName(const Weights& weights, const ModelConfig& config) {
  TensorsByName by_name;
  for (const TensorSpec& spec : ModelTensors(config)) by_name[spec.name] = nullptr;
  const std::optional<TensorSpec> tied_head = TiedHead(config);
  if (tied_head) by_name[tied_head->name] = nullptr;
  for (const HfTensor& t : weights.hf_tensors) {
    if (!t.counts_in_norm) continue;
    by_name[t.name] = &t;
    if (tied_head && t.parameter == weights.embedding) by_name[tied_head->name] = &t;
  }
  return by_name;
}

// The dtype of tensors that may be written in another than they were loaded in.
using DtypesByName = std::unordered_map<std::string, Dtype>;

// Returns that of all that are used, or, without one for all, of a tied model's head: a file may have it in another
// dtype than the embedding, and two roundings of one matrix are two matrices.
DtypesByName DtypesOf(const ModelDirectory& source, const TensorsByName& used, std::optional<Dtype> dtype) {
  const std::optional<TensorSpec> tied_head = TiedHead(source.config);
  const std::string embedding = ModelTensors(source.config).front().name;
  DtypesByName dtypes;
  for (const WeightFile& file : source.shards) {
    for (const TensorEntry& t : file.header.tensors) {
      if (dtype.has_value() && used.contains(t.name)) dtypes[t.name] = *dtype;
      if (!dtype.has_value() && tied_head && t.name == embedding) dtypes[tied_head->name] = t.dtype;
    }
  }
  return dtypes;
}

// Returns the header for these tensors, which are changed where their dtype is.
std::string HeaderFor(std::vector<TensorEntry>& tensors, const safetensors::Header& loaded,
                      const DtypesByName& dtypes) {
  bool changed = false;
  for (TensorEntry& t : tensors) {
    const auto dtype = dtypes.find(t.name);
    if (dtype == dtypes.end()) continue;
    changed |= t.dtype != dtype->second;
    t.dtype = dtype->second;
  }
  if (changed) return safetensors::MakeHeader(tensors, {{"format", "pt"}});
  const uint64_t size = loaded.raw.size();
  std::string header(reinterpret_cast<const char*>(&size),
                     sizeof(size));  // little-endian, as the format and x86 have it
  return header + loaded.raw;
}

// Checks elements of the piece from number `done` on: finite in the dtype of the file (`written`).
absl::Status CheckWritten(const ExportPiece& piece, int64_t done, const at::Tensor& masters,
                          const at::Tensor& written) {
  // The search reads no fp16, whose numbers fp32 holds.
  const bool half = piece.dtype == at::kHalf;
  const int64_t bad = kernels::FirstNonfinite(half ? written.to(at::kFloat) : written);
  if (bad < 0) return absl::OkStatus();
  return MakeError(Reason::kUnsupported, absl::StrCat("tensor \"", piece.tensor.name, "\": element ",
                                                      ElementText(piece.tensor, piece.elements, done + bad), " is ",
                                                      masters[bad].item<double>(), ", which is not finite as ",
                                                      std::string(safetensors::DtypeName(piece.tensor.dtype)),
                                                      "; export as ", half ? "bfloat16 or float32" : "float64"));
}

absl::Status WritePiece(const Weights& weights, const ExportPiece& piece, SharedFile& file) {
  const FilePiece& elements = piece.elements;
  uint64_t written = 0;
  for (int64_t done = 0; done < elements.count; done += kWrittenElements) {
    const int64_t count = std::min(kWrittenElements, elements.count - done);
    const at::Tensor masters = weights.at(elements.parameter).MasterElements(elements.begin + done, count);
    const at::Tensor values = masters.to(piece.dtype).to(at::kCPU).contiguous();
    RETURN_IF_ERROR(CheckWritten(piece, done, masters, values));
    RETURN_IF_ERROR(
        file.Write(elements.bytes, written, {static_cast<const char*>(values.data_ptr()), values.nbytes()}));
    written += values.nbytes();
  }
  return absl::OkStatus();
}

absl::Status Copy(const RegularFile& source, const CopiedBytes& copied, SharedFile& file) {
  const ByteRuns to = {.begin = copied.to, .length = copied.bytes};
  for (uint64_t done = 0; done < copied.bytes; done += kCopiedBytes) {
    std::string bytes(std::min(kCopiedBytes, copied.bytes - done), '\0');
    RETURN_IF_ERROR(source.ReadAt(copied.from + done, bytes.data(), bytes.size()));
    RETURN_IF_ERROR(file.Write(to, done, bytes));
  }
  return absl::OkStatus();
}

absl::Status WriteWhole(const std::string& path, const std::string& content) {
  ASSIGN_OR_RETURN(SharedFile file, SharedFile::Open(path));
  RETURN_IF_ERROR(file.Write({.length = content.size()}, 0, content));
  return file.Close();
}

}  // namespace

absl::StatusOr<WeightsExport> WeightsExport::Make(const Weights& weights, const ModelDirectory& source,
                                                  const std::optional<std::string>& dtype, const ExportShare& share) {
  std::optional<Dtype> export_dtype;
  if (dtype.has_value()) {
    ASSIGN_OR_RETURN(export_dtype, ParseFileDtype(*dtype));
  }
  const TensorsByName used = ByName(weights, source.config);
  const DtypesByName dtypes = DtypesOf(source, used, export_dtype);
  WeightsExport result(weights, source, export_dtype);
  for (const WeightFile& loaded : source.shards) {
    std::vector<TensorEntry> tensors = loaded.header.tensors;
    ExportFile& file = result.files_.emplace_back();
    file.name = loaded.file_name;
    file.source = loaded.path;
    std::string header = HeaderFor(tensors, loaded.header, dtypes);
    if (share.first) file.header = std::move(header);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const uint64_t bytes = tensors[i].end - tensors[i].begin;
      result.tensor_bytes_ += bytes;
      result.changes_bytes_ |= bytes != loaded.header.tensors[i].end - loaded.header.tensors[i].begin;
      const auto it = used.find(tensors[i].name);
      if (it == used.end()) {
        if (share.first) file.copied.push_back({loaded.header.tensors[i].begin, tensors[i].begin, bytes});
        continue;
      }
      ASSIGN_OR_RETURN(const at::ScalarType written_dtype, TorchDtype(tensors[i].dtype));
      if (it->second == nullptr) continue;
      for (const FilePiece& piece : FilePieces(*it->second, tensors[i], share.owned)) {
        file.pieces.push_back({piece, written_dtype, tensors[i]});
      }
    }
  }
  return result;
}

absl::StatusOr<uint64_t> WeightsExport::Write(const ExportFile& file, const std::string& folder) const {
  if (file.empty()) return 0;
  ASSIGN_OR_RETURN(SharedFile to, SharedFile::Open(fs::path(folder) / file.name));
  uint64_t bytes = file.header.size();
  RETURN_IF_ERROR(to.Write({.length = bytes}, 0, file.header));
  for (const ExportPiece& piece : file.pieces) {
    RETURN_IF_ERROR(WritePiece(*weights_, piece, to));
    bytes += piece.elements.bytes.bytes();
  }
  if (!file.copied.empty()) {
    ASSIGN_OR_RETURN(const RegularFile source, RegularFile::Open(file.source));
    for (const CopiedBytes& copied : file.copied) {
      RETURN_IF_ERROR(Copy(source, copied, to));
      bytes += copied.bytes;
    }
  }
  RETURN_IF_ERROR(to.Close());
  return bytes;
}

absl::Status WeightsExport::WriteOtherFiles(const std::string& folder) const {
  for (const auto& [name, path] : source_->other_files) {
    ASSIGN_OR_RETURN(std::string content, ReadOtherFile(path));
    if (name == "config.json") RETURN_IF_ERROR(CheckConfigStays(path, content, source_->config));
    if (dtype_.has_value() && name == "config.json") {
      ASSIGN_OR_RETURN(content, ConfigWithDtype(path, content, *dtype_));
    }
    if ((dtype_.has_value() || changes_bytes_) && name == "model.safetensors.index.json") {
      ASSIGN_OR_RETURN(content, IndexWithTotalSize(path, content, tensor_bytes_));
    }
    RETURN_IF_ERROR(MakeFolderOf(folder, name));
    RETURN_IF_ERROR(WriteWhole(fs::path(folder) / name, content));
  }
  const std::string templates = fs::path(folder) / kChatTemplatesFolder;
  std::error_code error;
  return fs::exists(templates, error) ? SyncFolder(templates) : absl::OkStatus();
}

}  // namespace stemma::worker
