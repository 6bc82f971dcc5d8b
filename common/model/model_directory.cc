#include "common/model/model_directory.h"

#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/json_fields.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/model/model_tensors.h"

namespace stemma {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 4096;
constexpr char kConfig[] = "config.json";
constexpr char kSingleShard[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kAdapter[] = "adapter_config.json";  // of peft

absl::Status Prefixed(const std::string& file_name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file_name, ": ", status.message()));
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

// Tensor name -> shard file name.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(path));
  ASSIGN_OR_RETURN(const std::string text, ReadFile(resolved, kMaxIndexBytes));
  const absl::StatusOr<json> root = ParseJson(text, {.max_depth = 8, .max_values = 10'000'000});
  if (!root.ok()) return Prefixed(path, root.status());
  if (!root->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not an object"));
  const JsonFields fields(*root, "");
  if (const auto object = fields.Object("weight_map"); !object.ok()) return Prefixed(path, object.status());
  WeightMap weight_map;
  for (const auto& [tensor, file] : (*root)["weight_map"].items()) {
    const std::string field = absl::StrCat("weight_map[", JsonExcerpt(tensor), "]");
    if (!file.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", field, " is not a string"));
    }
    if (const absl::Status name = CheckFileName(file.get<std::string>()); !name.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", field, ": ", name.message()));
    }
    weight_map[tensor] = file.get<std::string>();
  }
  if (weight_map.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is empty"));
  return weight_map;
}

absl::StatusOr<WeightFile> OpenShard(const std::string& directory, const std::string& file_name) {
  WeightFile shard;
  shard.file_name = file_name;
  ASSIGN_OR_RETURN(shard.path, ResolvePath(absl::StrCat(directory, "/", file_name)));
  absl::StatusOr<safetensors::Header> header = safetensors::ReadHeader(shard.path);
  if (!header.ok()) return Prefixed(absl::StrCat(directory, "/", file_name), header.status());
  shard.header = *std::move(header);
  return shard;
}

absl::Status CheckIndex(const std::string& index, const std::vector<WeightFile>& shards, const WeightMap& weight_map) {
  size_t num_tensors = 0;
  for (const WeightFile& shard : shards) {
    for (const safetensors::TensorEntry& tensor : shard.header.tensors) {
      const auto it = weight_map.find(tensor.name);
      if (it == weight_map.end() || it->second != shard.file_name) {
        return absl::InvalidArgumentError(absl::StrCat(shard.path, ": tensor ", JsonExcerpt(tensor.name), " is ",
                                                       it == weight_map.end() ? "not in " : "in another file by ",
                                                       kIndex));
      }
      ++num_tensors;
    }
  }
  if (num_tensors == weight_map.size()) return absl::OkStatus();
  std::set<std::string_view> present;
  for (const WeightFile& shard : shards) {
    for (const safetensors::TensorEntry& tensor : shard.header.tensors) present.insert(tensor.name);
  }
  for (const auto& [tensor, file] : weight_map) {
    if (!present.contains(tensor)) {
      return absl::InvalidArgumentError(
          absl::StrCat(index, ": weight_map[", JsonExcerpt(tensor), "]: ", file, " has no such tensor"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WeightFile>> OpenShards(const std::string& directory, bool has_index) {
  std::vector<WeightFile> shards;
  if (!has_index) {
    ASSIGN_OR_RETURN(WeightFile shard, OpenShard(directory, kSingleShard));
    shards.push_back(std::move(shard));
    return shards;
  }
  const std::string index = absl::StrCat(directory, "/", kIndex);
  ASSIGN_OR_RETURN(const WeightMap weight_map, ReadIndex(index));
  std::set<std::string> file_names;
  for (const auto& [tensor, file_name] : weight_map) file_names.insert(file_name);
  if (file_names.size() > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat(index, ": names ", file_names.size(), " files"));
  }
  for (const std::string& file_name : file_names) {
    ASSIGN_OR_RETURN(WeightFile shard, OpenShard(directory, file_name));
    shards.push_back(std::move(shard));
  }
  RETURN_IF_ERROR(CheckIndex(index, shards, weight_map));
  return shards;
}

bool IsFloat(safetensors::Dtype dtype) {
  using enum safetensors::Dtype;
  return dtype == kF16 || dtype == kBF16 || dtype == kF32 || dtype == kF64;
}

// Known to be unused by the model: a tied model's head, and frequencies that old exports stored.
bool IsIgnored(const safetensors::TensorEntry& tensor, const ModelConfig& config) {
  if (absl::EndsWith(tensor.name, ".rotary_emb.inv_freq")) return true;
  const std::optional<TensorSpec> head = TiedHead(config);
  return head && tensor.name == head->name && tensor.shape == head->shape;
}

absl::Status CheckTensor(const safetensors::TensorEntry& tensor, const TensorSpec* spec, const std::string& where) {
  const std::string name = absl::StrCat(where, ": tensor ", JsonExcerpt(tensor.name), " ");
  if (spec == nullptr) {
    const bool joined = absl::EndsWith(tensor.name, ".mlp.experts.gate_up_proj") ||
                        absl::EndsWith(tensor.name, ".mlp.experts.down_proj");
    return absl::InvalidArgumentError(absl::StrCat(
        name, "does not belong to the model of ", kConfig,
        joined ? ": experts are read one by one, as transformers' save_pretrained writes them by default" : ""));
  }
  if (tensor.shape != spec->shape) {
    return absl::InvalidArgumentError(absl::StrCat(name, "has shape [", absl::StrJoin(tensor.shape, ","),
                                                   "], the config's is [", absl::StrJoin(spec->shape, ","), "]"));
  }
  if (!IsFloat(tensor.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(name, "has dtype ",
                                                   std::string(safetensors::DtypeName(tensor.dtype)),
                                                   "; weights must be F16, BF16, F32 or F64"));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const ModelDirectory& directory) {
  const std::vector<TensorSpec> specs = ModelTensors(directory.config);
  absl::flat_hash_map<std::string, const TensorSpec*> expected;
  for (const TensorSpec& spec : specs) expected.emplace(spec.name, &spec);
  absl::flat_hash_map<std::string, const WeightFile*> seen;
  for (const WeightFile& shard : directory.shards) {
    const std::string where = absl::StrCat(directory.path, "/", shard.file_name);
    for (const safetensors::TensorEntry& tensor : shard.header.tensors) {
      if (IsIgnored(tensor, directory.config)) continue;
      const auto it = expected.find(tensor.name);
      RETURN_IF_ERROR(CheckTensor(tensor, it == expected.end() ? nullptr : it->second, where));
      const auto [first, inserted] = seen.emplace(tensor.name, &shard);
      if (!inserted) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": tensor \"", tensor.name, "\" is in ", first->second->file_name, " too"));
      }
    }
  }
  for (const TensorSpec& spec : specs) {
    if (seen.contains(spec.name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(directory.path, "/", directory.has_index ? kIndex : kSingleShard,
                                                   ": tensor \"", spec.name, "\" is missing"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path) {
  struct stat info;
  const bool is_directory = stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  const std::string file = is_directory ? absl::StrCat(path, "/", kConfig) : path;
  ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(file));
  ASSIGN_OR_RETURN(const std::string text, ReadFile(resolved, kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  return config.ok() ? std::move(config) : Prefixed(file, config.status());
}

absl::StatusOr<ModelDirectory> OpenModelWeights(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus("open model directory", path, errno);
  if (!S_ISDIR(info.st_mode)) return absl::NotFoundError(absl::StrCat(path, ": not a directory"));
  ModelDirectory directory;
  ASSIGN_OR_RETURN(directory.path, ResolvePath(path));
  const auto in = [&](const std::string& name) { return absl::StrCat(directory.path, "/", name); };
  ASSIGN_OR_RETURN(directory.config, ReadModelConfig(in(kConfig)));
  directory.has_index = !Exists(in(kSingleShard)) && Exists(in(kIndex));
  if (!directory.has_index && !Exists(in(kSingleShard))) {
    return absl::NotFoundError(absl::StrCat(directory.path, ": has neither ", kSingleShard, " nor ", kIndex));
  }
  ASSIGN_OR_RETURN(directory.shards, OpenShards(directory.path, directory.has_index));
  if (Exists(in(kAdapter))) {
    return absl::InvalidArgumentError(absl::StrCat(
        in(kAdapter), ": an adapter is not applied to the weights beside it; merge it into them, or move it away"));
  }
  RETURN_IF_ERROR(CheckTensors(directory));
  return directory;
}

absl::StatusOr<ModelDirectory> OpenModelDirectory(const std::string& path) {
  ASSIGN_OR_RETURN(ModelDirectory directory, OpenModelWeights(path));
  ASSIGN_OR_RETURN(OtherFiles others, FindOtherFiles(directory.path));
  directory.other_files = std::move(others.files);
  directory.left_out = std::move(others.left_out);
  if (directory.has_index) {
    ASSIGN_OR_RETURN(directory.other_files[kIndex], ResolvePath(absl::StrCat(directory.path, "/", kIndex)));
  }
  return directory;
}

}  // namespace stemma
