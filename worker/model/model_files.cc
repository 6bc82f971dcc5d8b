#include "worker/model/model_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/model/config_difference.h"
#include "nlohmann/json.hpp"

namespace stemma::worker {
namespace {

using safetensors::Dtype;

constexpr mode_t kFolderMode = 0755;
constexpr uint64_t kOtherFileBytesMax = uint64_t{256} << 20;

struct FileDtype {
  const char* name;
  Dtype dtype;
};
constexpr FileDtype kFileDtypes[] = {
    {"float32", Dtype::kF32}, {"float64", Dtype::kF64}, {"bfloat16", Dtype::kBF16}, {"float16", Dtype::kF16}};

// The object in a JSON file that is copied with changes, its keys in their order, with the same bounds as when it was
// loaded, so that neither reading nor writing it can throw.
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

std::string FileText(const nlohmann::ordered_json& json) { return json.dump(2) + "\n"; }

}  // namespace

absl::StatusOr<std::string> ReadOtherFile(const std::string& path) {
  absl::StatusOr<std::string> content = ReadFile(path, kOtherFileBytesMax);
  if (!absl::IsNotFound(content.status())) return content;
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": has gone since the model was loaded, and exports and checkpoints copy it: put the model directory back"));
}

absl::Status MakeFolderOf(const std::string& folder, const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == name.npos) return absl::OkStatus();
  const std::string path = absl::StrCat(folder, "/", name.substr(0, slash));
  return mkdir(path.c_str(), kFolderMode) == 0 || errno == EEXIST ? absl::OkStatus()
                                                                  : ErrnoStatus("create", path, errno);
}

absl::StatusOr<Dtype> ParseFileDtype(const std::string& name) {
  for (const FileDtype& d : kFileDtypes) {
    if (name == d.name) return d.dtype;
  }
  return absl::InvalidArgumentError("dtype: '" + name + "' is not one of float32, float64, bfloat16, float16");
}

absl::StatusOr<std::string> ConfigWithDtype(const std::string& path, const std::string& content, Dtype dtype) {
  ASSIGN_OR_RETURN(nlohmann::ordered_json json, ParseObject(path, content));
  const auto* name = std::find_if(std::begin(kFileDtypes), std::end(kFileDtypes),
                                  [&](const FileDtype& d) { return d.dtype == dtype; });
  // Newer readers know the first key, older ones the second.
  if (json.contains("dtype")) json["dtype"] = name->name;
  if (json.contains("torch_dtype") || !json.contains("dtype")) json["torch_dtype"] = name->name;
  return FileText(json);
}

absl::Status CheckConfigStays(const std::string& path, const std::string& content, const ModelConfig& loaded) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(content);
  std::string difference;
  if (!config.ok()) {
    difference = std::string(config.status().message());
  } else if (const std::string field = FirstDifference(*config, loaded); !field.empty()) {
    difference = absl::StrCat(field, " is another one");
  }
  if (difference.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": has changed since the model was loaded: ", difference));
}

// A metadata that is no object, which nothing reads, gives way to one.
absl::StatusOr<std::string> IndexWithTotalSize(const std::string& path, const std::string& content, uint64_t bytes) {
  ASSIGN_OR_RETURN(nlohmann::ordered_json json, ParseObject(path, content));
  nlohmann::ordered_json& metadata = json["metadata"];
  if (!metadata.is_object()) metadata = nlohmann::ordered_json::object();
  metadata["total_size"] = bytes;
  return FileText(json);
}

std::string MakeIndex(const std::map<std::string, std::string>& file_of_tensor, uint64_t bytes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["metadata"] = {{"total_size", bytes}};
  json["weight_map"] = file_of_tensor;
  return FileText(json);
}

}  // namespace stemma::worker
