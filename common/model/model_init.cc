#include "common/model/model_init.h"

#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/file_writer.h"
#include "common/base/random_values.h"
#include "common/base/status_macros.h"
#include "common/model/model_tensors.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"

namespace stemma {
namespace {

using nlohmann::json;
using safetensors::Dtype;
using safetensors::TensorEntry;

constexpr size_t kWriteElements = 1 << 16;

std::string TorchDtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return "float64";
    case Dtype::kBF16:
      return "bfloat16";
    case Dtype::kF16:
      return "float16";
    default:
      return "float32";
  }
}

json RopeJson(const ModelConfig& config) {
  if (!config.rope_scaling) return {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  const Llama3RopeScaling& scaling = *config.rope_scaling;
  return {{"factor", scaling.factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_positions},
          {"rope_theta", config.rope_theta},
          {"rope_type", "llama3"}};
}

void AddExperts(const ModelConfig& config, json& root) {
  root["decoder_sparse_step"] = 1;
  root["mlp_only_layers"] = json::array();
  root["moe_intermediate_size"] = config.ffn_size;
  root["norm_topk_prob"] = config.experts->weights_sum_to_one;
  root["num_experts_per_tok"] = config.experts->per_token;
  root["num_experts"] = config.experts->count;  // as transformers 4 spells it, and every reader knows
  root["output_router_logits"] = false;
}

// ----------------------------------------------------------------------------------------------------------------
// values

uint16_t BFloat16Bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Round to nearest, ties to even; values here are finite, those beyond half's range become infinite.
uint16_t HalfBits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  if (exponent > 15) return sign | 0x7c00;
  if (exponent < -25) return sign;
  const uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
  const int shift = exponent < -14 ? 13 - 14 - exponent : 13;  // subnormals keep fewer bits
  uint32_t half = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
  if (rest > tie || (rest == tie && (half & 1) != 0)) ++half;
  // The implicit bit, still in `half`, adds one to the exponent field.
  const uint32_t field = exponent < -14 ? 0 : static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | (field + half));
}

template <typename T>
void Append(T value, std::string& bytes) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

void AppendValue(double value, Dtype dtype, std::string& bytes) {
  switch (dtype) {
    case Dtype::kF64:
      return Append(value, bytes);
    case Dtype::kBF16:
      return Append(BFloat16Bits(static_cast<float>(value)), bytes);
    case Dtype::kF16:
      return Append(HalfBits(static_cast<float>(value)), bytes);
    default:
      return Append(static_cast<float>(value), bytes);
  }
}

// Norm weights are 1 + noise, the others 0 + noise.
struct Distribution {
  double mean, std;
};

Distribution DistributionOf(TensorKind kind, const ModelInitOptions& options) {
  if (kind == TensorKind::kNorm) return {1, options.norm_std};
  return {0, kind == TensorKind::kBias ? options.bias_std : options.weight_std};
}

absl::Status WriteTensor(const TensorEntry& tensor, const Distribution& distribution, const ModelInitOptions& options,
                         FileWriter& file) {
  RandomValues random(options.seed, tensor.name);
  int64_t remaining = static_cast<int64_t>(tensor.end - tensor.begin) / safetensors::DtypeBytes(tensor.dtype);
  std::string bytes;
  while (remaining > 0) {
    if (options.stopped && options.stopped()) return absl::CancelledError("stopped before the model was whole");
    bytes.clear();
    for (size_t i = 0; i < kWriteElements && remaining > 0; ++i, --remaining) {
      const double noise = random.NextNormal() * distribution.std;
      AppendValue(distribution.mean + noise, tensor.dtype, bytes);
    }
    RETURN_IF_ERROR(file.Write(bytes.data(), bytes.size()));
  }
  return absl::OkStatus();
}

// ----------------------------------------------------------------------------------------------------------------
// shards

uint64_t BytesOf(const TensorEntry& tensor) {
  uint64_t bytes = static_cast<uint64_t>(safetensors::DtypeBytes(tensor.dtype));
  for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

struct Shard {
  std::vector<TensorEntry> tensors;
  std::vector<TensorKind> kinds;  // of the tensors
};

// In order; a shard is full when the next tensor would exceed the limit, and holds one tensor at least.
std::vector<Shard> CutIntoShards(const ModelConfig& config, const ModelInitOptions& options) {
  std::vector<Shard> shards(1);
  uint64_t shard_bytes = 0;
  for (TensorSpec& spec : ModelTensors(config)) {
    TensorEntry tensor{.name = std::move(spec.name), .dtype = options.dtype, .shape = std::move(spec.shape)};
    const uint64_t bytes = BytesOf(tensor);
    if (options.max_shard_bytes > 0 && !shards.back().tensors.empty() &&
        shard_bytes + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    shards.back().tensors.push_back(std::move(tensor));
    shards.back().kinds.push_back(spec.kind);
  }
  return shards;
}

absl::Status WriteShard(Shard& shard, const ModelInitOptions& options, const std::string& path) {
  ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(path));
  const std::string header = safetensors::MakeHeader(shard.tensors, {{"format", "pt"}});
  RETURN_IF_ERROR(file.Write(header.data(), header.size()));
  for (size_t i = 0; i < shard.tensors.size(); ++i) {
    RETURN_IF_ERROR(WriteTensor(shard.tensors[i], DistributionOf(shard.kinds[i], options), options, file));
  }
  return file.Close();
}

absl::Status WriteShards(const ModelConfig& config, const ModelInitOptions& options, const std::string& directory) {
  std::vector<Shard> shards = CutIntoShards(config, options);
  if (options.max_shard_bytes == 0) return WriteShard(shards[0], options, directory + "/model.safetensors");
  uint64_t total_bytes = 0;
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    RETURN_IF_ERROR(WriteShard(shards[i], options, absl::StrCat(directory, "/", name)));
    for (const TensorEntry& tensor : shards[i].tensors) {
      weight_map[tensor.name] = name;
      total_bytes += BytesOf(tensor);
    }
  }
  const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return WriteFile(directory + "/model.safetensors.index.json", index.dump(2) + "\n");
}

absl::Status WriteFiles(const ModelConfig& config, const std::string& config_json, const ModelInitOptions& options,
                        const std::string& directory) {
  RETURN_IF_ERROR(WriteFile(directory + "/config.json", config_json));
  if (options.eos_token_id) {
    const json generation = {{"_from_model_config", true}, {"eos_token_id", *options.eos_token_id}};
    RETURN_IF_ERROR(WriteFile(directory + "/generation_config.json", generation.dump(2) + "\n"));
  }
  return WriteShards(config, options, directory);
}

absl::Status CheckOptions(const ModelInitOptions& options) {
  const Dtype dtype = options.dtype;
  if (dtype != Dtype::kF32 && dtype != Dtype::kF64 && dtype != Dtype::kBF16 && dtype != Dtype::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", std::string(safetensors::DtypeName(dtype)), ": weights are F32, F64, BF16 or F16"));
  }
  for (const double std : {options.weight_std, options.bias_std, options.norm_std}) {
    if (!(std >= 0 && std < 1e3)) return absl::InvalidArgumentError(absl::StrCat("standard deviation ", std));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ModelConfigJson(const ModelConfig& config, const ModelInitOptions& options) {
  const Family* family = FindFamily(config.model_type);
  CHECK(family != nullptr) << config.model_type;
  json root;
  root["architectures"] = {std::string(family->architecture)};
  root["attention_dropout"] = 0.0;
  root["bos_token_id"] = nullptr;
  root["dtype"] = TorchDtypeName(options.dtype);
  root["eos_token_id"] = options.eos_token_id ? json(*options.eos_token_id) : json(nullptr);
  root["head_dim"] = config.head_size;
  root["hidden_act"] = "silu";
  root["hidden_size"] = config.hidden_size;
  root["initializer_range"] = options.weight_std;
  root["intermediate_size"] = config.ffn_size;
  root["max_position_embeddings"] = config.max_positions;
  root["model_type"] = config.model_type;
  root["num_attention_heads"] = config.num_heads;
  root["num_hidden_layers"] = config.num_layers;
  root["num_key_value_heads"] = config.num_kv_heads;
  root["pad_token_id"] = nullptr;
  root["rms_norm_eps"] = config.rms_norm_eps;
  root["rope_parameters"] = RopeJson(config);
  root["tie_word_embeddings"] = config.tie_word_embeddings;
  root["use_cache"] = true;
  root["vocab_size"] = config.vocab_size;
  if (config.experts) AddExperts(config, root);
  if (family->window == WindowRule::kWidth) root["sliding_window"] = nullptr;
  for (const std::string_view name : family->written_false) {
    if (!name.empty()) root[std::string(name)] = false;
  }
  return root.dump(2) + "\n";
}

absl::Status WriteRandomModel(const ModelConfig& config, const ModelInitOptions& options, const std::string& path) {
  RETURN_IF_ERROR(CheckOptions(options));
  const std::string config_json = ModelConfigJson(config, options);
  if (const auto parsed = ParseModelConfig(config_json); !parsed.ok()) return parsed.status();
  if (mkdir(path.c_str(), 0755) != 0) return ErrnoStatus("create", path, errno);
  absl::Status written = WriteFiles(config, config_json, options, path);
  std::error_code ignored;
  if (!written.ok()) std::filesystem::remove_all(path, ignored);  // nothing but this call's files is in it
  return written;
}

}  // namespace stemma
