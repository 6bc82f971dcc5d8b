#include "worker/model/weights_io.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/dtype_names.h"
#include "common/base/file.h"
#include "common/base/file_writer.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_folder.h"
#include "nlohmann/json.hpp"
#include "worker/backend/accumulate_type.h"
#include "worker/backend/cpu/finite.h"
#include "worker/optim/shards.h"
#include "worker/optim/states.h"

namespace stemma::worker {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;

constexpr int64_t kPieceBytes = int64_t{64} << 20;  // read and converted at a time
constexpr uint64_t kIndexBytesMax = uint64_t{256} << 20;

absl::StatusOr<at::ScalarType> TorchDtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return at::kHalf;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF64:
      return at::kDouble;
    default:
      return absl::InvalidArgumentError("weights of dtype " + std::string(safetensors::DtypeName(dtype)) +
                                        " are not supported: F16, BF16, F32, F64 are");
  }
}

struct ExportDtype {
  const char* name;
  Dtype dtype;
};
constexpr ExportDtype kExportDtypes[] = {
    {"float32", Dtype::kF32}, {"float64", Dtype::kF64}, {"bfloat16", Dtype::kBF16}, {"float16", Dtype::kF16}};

absl::StatusOr<Dtype> ParseExportDtype(const std::string& name) {
  for (const ExportDtype& d : kExportDtypes) {
    if (name == d.name) return d.dtype;
  }
  return absl::InvalidArgumentError("dtype: '" + name + "' is not one of float32, float64, bfloat16, float16");
}

// Calls fn(first, number) over pieces of so many elements, or rows.
template <typename Fn>
absl::Status ForPieces(int64_t count, int64_t bytes_of_one, const Fn& fn) {
  const int64_t step = std::max<int64_t>(kPieceBytes / bytes_of_one, 1);
  for (int64_t begin = 0; begin < count; begin += step) {
    RETURN_IF_ERROR(fn(begin, std::min(step, count - begin)));
  }
  return absl::OkStatus();
}

// Element `index` of a tensor as [row, column], the way its shape counts.
std::string ElementText(const safetensors::TensorEntry& entry, int64_t index) {
  std::vector<int64_t> place(entry.shape.size());
  for (size_t d = entry.shape.size(); d-- > 0; index /= entry.shape[d]) place[d] = index % entry.shape[d];
  return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

// The object in a JSON file that is copied with changes, its keys in their order. It was checked when the model was
// loaded, but files change: with the same bounds as then, so that neither reading nor writing it can throw.
absl::StatusOr<nlohmann::ordered_json> ParseObject(const std::string& path, const std::string& content) {
  const absl::StatusOr<nlohmann::json> checked = ParseJson(content);
  const std::string problem = !checked.ok()           ? std::string(checked.status().message())
                              : !checked->is_object() ? absl::StrCat("is ", JsonTypeName(*checked), ", not an object")
                                                      : "";
  if (!problem.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", problem, "; it has changed since the model was loaded"));
  }
  return nlohmann::ordered_json::parse(content, nullptr, /*allow_exceptions=*/false);
}

// A tensor that is read: where it stands and where it goes.
struct LoadedTensor {
  const std::string& path;
  const RegularFile& file;
  const safetensors::TensorEntry& entry;
  const Weights& weights;
  const HfTensor& place;  // in the weights

  int64_t columns() const { return entry.shape.size() > 1 ? entry.shape[1] : 1; }
};

absl::Status TensorError(const LoadedTensor& tensor, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(tensor.path, ": tensor \"", tensor.entry.name, "\": ", text));
}

// Checks elements from `begin` on: finite as the file has them (`read`) and as the run holds them.
absl::Status CheckFinite(const LoadedTensor& tensor, int64_t begin, const at::Tensor& read, const at::Tensor& held) {
  const int64_t bad = kernels::FirstNonfinite(held);
  if (bad < 0) return absl::OkStatus();
  const double value = read[bad].item<double>();
  return TensorError(tensor,
                     absl::StrCat("element ", ElementText(tensor.entry, begin + bad), " is ", value,
                                  std::isfinite(value) ? ", which overflows in the run's dtype" : "",
                                  "; weights must be finite: write the model again from a checkpoint that is sound"));
}

absl::Status LoadTensor(const LoadedTensor& tensor) {
  const absl::StatusOr<at::ScalarType> dtype = TorchDtype(tensor.entry.dtype);
  if (!dtype.ok()) return TensorError(tensor, std::string(dtype.status().message()));
  const int64_t columns = tensor.columns(), row_bytes = columns * safetensors::DtypeBytes(tensor.entry.dtype);
  const TensorBox& box = tensor.place.box;
  const at::ScalarType run_dtype = tensor.weights.run_dtype;
  // Whole rows are read, also where the box has some of their columns only: one read a piece.
  return ForPieces(box.rows(), row_bytes, [&](int64_t begin, int64_t count) -> absl::Status {
    const int64_t first_row = box.row_begin + begin;
    const at::Tensor rows = at::empty({count, columns}, at::TensorOptions(at::kCPU).dtype(*dtype));
    RETURN_IF_ERROR(tensor.file.ReadAt(tensor.entry.begin + static_cast<uint64_t>(first_row * row_bytes),
                                       rows.data_ptr(), static_cast<uint64_t>(count * row_bytes)));
    tensor.weights.StoreRows(tensor.place, begin, rows.slice(1, box.column_begin, box.column_end));
    const at::Tensor read = rows.view({-1});
    return CheckFinite(tensor, first_row * columns, read, read.to(AccType(run_dtype)).to(run_dtype));
  });
}

absl::Status WriteTensor(FileWriter& writer, const at::Tensor& value, Dtype dtype) {
  ASSIGN_OR_RETURN(const at::ScalarType torch_dtype, TorchDtype(dtype));
  const at::Tensor flat = value.contiguous().view({-1});
  const int64_t element_bytes = safetensors::DtypeBytes(dtype);
  return ForPieces(flat.numel(), element_bytes, [&](int64_t begin, int64_t count) -> absl::Status {
    const at::Tensor piece = flat.slice(0, begin, begin + count).to(torch_dtype).to(at::kCPU).contiguous();
    return writer.Write(piece.data_ptr(), static_cast<size_t>(count * element_bytes));
  });
}

// A tensor that the model does not use (rotary buffers of old checkpoints): copied as it is.
absl::Status CopyTensor(FileWriter& writer, const RegularFile& file, const safetensors::TensorEntry& entry) {
  return ForPieces(static_cast<int64_t>(entry.end - entry.begin), 1, [&](int64_t begin, int64_t count) -> absl::Status {
    std::string piece(static_cast<size_t>(count), '\0');
    RETURN_IF_ERROR(file.ReadAt(entry.begin + static_cast<uint64_t>(begin), piece.data(), piece.size()));
    return writer.Write(piece.data(), piece.size());
  });
}

// The exporter copies what the weights do not name as the source has it: of a part it would write old weights.
void CheckWhole(const Weights& weights, const ModelConfig& config) {
  const std::vector<LocalTensor> whole = LocalTensors(WholeModel(config));
  CHECK_EQ(weights.hf_tensors.size(), whole.size()) << "an export takes the weights of the whole model";
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(weights.hf_tensors[i].box == whole[i].box) << whole[i].spec.name << ": an export takes the whole tensor";
  }
}

class Exporter {
 public:
  Exporter(const Weights& weights, const ModelDirectory& source, std::optional<Dtype> dtype)
      : weights_(weights), source_(source), dtype_(dtype) {
    const std::optional<TensorSpec> tied_head = TiedHead(weights.config);
    for (const HfTensor& t : weights.hf_tensors) {
      by_name_[t.name] = &t;
      if (tied_head && t.parameter == weights.head) by_name_[tied_head->name] = &t;
    }
  }

  absl::StatusOr<uint64_t> Write(const WeightFile& like, const fs::path& folder) {
    ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(like.path));
    ASSIGN_OR_RETURN(FileWriter writer, FileWriter::Create(folder / like.file_name));
    std::vector<safetensors::TensorEntry> tensors = like.header.tensors;
    std::string header = Converted(tensors);
    if (header.empty()) {
      const uint64_t size = like.header.raw.size();
      header.assign(reinterpret_cast<const char*>(&size),
                    sizeof(size));  // little-endian, as the format and x86 have it
      header += like.header.raw;
    }
    RETURN_IF_ERROR(writer.Write(header.data(), header.size()));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto it = by_name_.find(tensors[i].name);
      RETURN_IF_ERROR(it == by_name_.end() ? CopyTensor(writer, file, like.header.tensors[i])
                                           : WriteTensor(writer, weights_.MasterSlice(*it->second), tensors[i].dtype));
      tensor_bytes_ += tensors[i].end - tensors[i].begin;
    }
    RETURN_IF_ERROR(writer.Close());
    return writer.bytes_written();
  }

  absl::Status WriteOtherFiles(const fs::path& folder) const {
    for (const auto& [name, path] : source_.other_files) {
      ASSIGN_OR_RETURN(std::string content, ReadFile(path, kIndexBytesMax));
      if (dtype_.has_value() && (name == "config.json" || name == "model.safetensors.index.json")) {
        ASSIGN_OR_RETURN(nlohmann::ordered_json json, ParseObject(path, content));
        name == "config.json" ? SetDtype(json) : SetTotalSize(json);
        content = json.dump(2) + "\n";
      }
      RETURN_IF_ERROR(WriteFile(folder / name, content));
    }
    return absl::OkStatus();
  }

 private:
  // The new header when a dtype changes (entries changed too), else empty.
  std::string Converted(std::vector<safetensors::TensorEntry>& tensors) const {
    if (!dtype_.has_value()) return "";
    bool changed = false;
    for (safetensors::TensorEntry& t : tensors) {
      changed |= by_name_.contains(t.name) && t.dtype != *dtype_;
      if (by_name_.contains(t.name)) t.dtype = *dtype_;
    }
    return changed ? safetensors::MakeHeader(tensors, {{"format", "pt"}}) : "";
  }

  void SetDtype(nlohmann::ordered_json& json) const {
    const auto* name = std::find_if(std::begin(kExportDtypes), std::end(kExportDtypes),
                                    [&](const ExportDtype& d) { return d.dtype == *dtype_; });
    const char* key = json.contains("dtype") ? "dtype" : "torch_dtype";
    json[key] = name->name;
  }

  // Counts all tensors, also those that are copied. A metadata that is no object, which nothing reads, gives way to
  // one.
  void SetTotalSize(nlohmann::ordered_json& json) const {
    nlohmann::ordered_json& metadata = json["metadata"];
    if (!metadata.is_object()) metadata = nlohmann::ordered_json::object();
    metadata["total_size"] = tensor_bytes_;
  }

  const Weights& weights_;
  const ModelDirectory& source_;
  const std::optional<Dtype> dtype_;
  std::unordered_map<std::string, const HfTensor*> by_name_;
  uint64_t tensor_bytes_ = 0;
};

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
  std::unordered_map<std::string, const HfTensor*> wanted;
  for (const HfTensor& t : weights.hf_tensors) wanted[t.name] = &t;
  for (const WeightFile& weight_file : directory.shards) {
    ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(weight_file.path));
    for (const safetensors::TensorEntry& entry : weight_file.header.tensors) {
      const auto it = wanted.find(entry.name);
      if (it == wanted.end()) continue;
      const HfTensor& tensor = *it->second;
      RETURN_IF_ERROR(LoadTensor({weight_file.path, file, entry, weights, tensor}));
      wanted.erase(it);
    }
  }
  if (!wanted.empty()) {
    return absl::InvalidArgumentError(directory.path + ": tensor " + wanted.begin()->first + " is missing");
  }
  return weights;
}

absl::StatusOr<uint64_t> ExportWeights(const Weights& weights, const ModelDirectory& source, const std::string& target,
                                       const std::optional<std::string>& dtype) {
  CheckWhole(weights, source.config);
  std::optional<Dtype> export_dtype;
  if (dtype.has_value()) {
    ASSIGN_OR_RETURN(export_dtype, ParseExportDtype(*dtype));
  }
  std::error_code error;
  if (fs::exists(target, error)) {
    return absl::AlreadyExistsError(target + " exists: choose another name, or remove it");
  }
  ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create(target));
  Exporter exporter(weights, source, export_dtype);
  uint64_t bytes = 0;
  for (const WeightFile& weight_file : source.shards) {
    ASSIGN_OR_RETURN(const uint64_t file_bytes, exporter.Write(weight_file, folder.path()));
    bytes += file_bytes;
  }
  RETURN_IF_ERROR(exporter.WriteOtherFiles(folder.path()));
  RETURN_IF_ERROR(folder.Commit());
  return bytes;
}

}  // namespace stemma::worker
