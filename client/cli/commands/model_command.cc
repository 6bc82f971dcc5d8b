// stemma model init|inspect: random models from a seed, and what a model directory holds.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/calls/interrupt.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/fit.h"
#include "client/cli/commands/model_shape.h"
#include "client/cli/output/command_status.h"
#include "common/base/command_line_options.h"
#include "common/base/dtype_names.h"
#include "common/base/human.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"
#include "common/model/model_directory.h"
#include "common/model/model_init.h"

namespace stemma::cli {
namespace {

constexpr uint64_t kTokenIdMax = (uint64_t{1} << 31) - 1;

struct InitOptions {
  std::string path;
  ModelConfig config;
  ModelInitOptions init;
  bool llama3_rope = false;
  int64_t experts = 0, experts_per_token = 0;  // 0: not given
  bool raw_expert_weights = false;
  int64_t eos_token_id = -1;  // below 0: none
};

struct InspectOptions {
  std::string path;
  OutputOptions output;
  bool tensors = false;
  bool fit = false;
  GroupLengths lengths;
  uint64_t device_bytes = 0;
  std::string dtype;  // empty: fp32 and bf16
};

absl::Status SetExperts(const InitOptions& options, ModelConfig& config) {
  if (config.experts) {
    Experts& experts = *config.experts;
    if (options.experts > 0) experts.count = options.experts;
    experts.per_token =
        options.experts_per_token > 0 ? options.experts_per_token : std::min(experts.per_token, experts.count);
    experts.weights_sum_to_one = !options.raw_expert_weights;
    return absl::OkStatus();
  }
  const std::string option = options.experts > 0             ? "--experts"
                             : options.experts_per_token > 0 ? "--experts-per-token"
                             : options.raw_expert_weights    ? "--raw-expert-weights"
                                                             : "";
  if (option.empty()) return absl::OkStatus();
  std::vector<std::string> families;
  for (const Family& family : Families()) {
    if (family.experts) families.emplace_back(family.model_type);
  }
  return UsageError(absl::StrCat(
      option, ": ", config.model_type,
      " has one MLP in a layer; leave it out, or choose a --family with experts: ", absl::StrJoin(families, ", ")));
}

// Fields that the family decides, and sizes that follow from others.
absl::Status Complete(InitOptions& options) {
  ModelConfig& config = options.config;
  config.SetFamily(*FindFamily(config.model_type));  // one of the list that the option checks
  RETURN_IF_ERROR(SetExperts(options, config));
  if (config.num_kv_heads == 0) config.num_kv_heads = config.num_heads;
  if (config.head_size == 0) config.head_size = config.hidden_size / config.num_heads;
  if (config.ffn_size == 0) config.ffn_size = 3 * config.hidden_size;
  if (options.llama3_rope) config.rope_scaling = Llama3RopeScaling{.factor = 8};
  if (options.eos_token_id >= 0) options.init.eos_token_id = options.eos_token_id;
  return absl::OkStatus();
}

absl::Status RunInit(InitOptions options) {
  RETURN_IF_ERROR(Complete(options));
  CatchInterrupts();
  options.init.stopped = &Interrupted;
  const absl::Status status = WriteRandomModel(options.config, options.init, options.path);
  if (absl::IsCancelled(status)) return PartialError(absl::StrCat("interrupted: ", options.path, " is not kept"));
  if (!status.ok()) return UsageError(std::string(status.message()));
  std::cout << options.path << std::endl;
  std::cerr << options.config.num_parameters() << " parameters" << std::endl;
  return absl::OkStatus();
}

Record ConfigRecord(const ModelConfig& config) {
  Record record;
  record["model_type"] = config.model_type;
  record["parameters"] = config.num_parameters();
  record["vocab_size"] = config.vocab_size;
  record["hidden_size"] = config.hidden_size;
  record["num_layers"] = config.num_layers;
  record["num_heads"] = config.num_heads;
  record["num_kv_heads"] = config.num_kv_heads;
  record["head_size"] = config.head_size;
  record["ffn_size"] = config.ffn_size;
  record["max_positions"] = config.max_positions;
  record["rms_norm_eps"] = config.rms_norm_eps;
  record["rope_theta"] = config.rope_theta;
  record["rope_scaling"] = config.rope_scaling ? Record("llama3") : Record();
  record["tie_word_embeddings"] = config.tie_word_embeddings;
  record["qkv_bias"] = config.qkv_bias;
  record["qk_norm"] = config.qk_norm;
  if (config.experts) {
    record["experts"] = config.experts->count;
    record["experts_per_token"] = config.experts->per_token;
    record["expert_weights_sum_to_one"] = config.experts->weights_sum_to_one;
  }
  return record;
}

std::vector<Record> TensorRecords(const ModelDirectory& directory) {
  std::vector<Record> records;
  for (const WeightFile& shard : directory.shards) {
    for (const safetensors::TensorEntry& tensor : shard.header.tensors) {
      Record record;
      record["name"] = tensor.name;
      record["dtype"] = std::string(safetensors::DtypeName(tensor.dtype));
      record["shape"] = tensor.shape;
      record["bytes"] = tensor.end - tensor.begin;
      record["file"] = shard.file_name;
      records.push_back(std::move(record));
    }
  }
  return records;
}

void PrintTensors(const InspectOptions& options, std::vector<Record> tensors) {
  if (options.output.format == OutputFormat::kTable) {
    for (Record& tensor : tensors) tensor["shape"] = JsonText(tensor["shape"]);
  }
  const std::vector<Column> columns = {{"name", "name", 8, true},
                                       {"dtype", "dtype"},
                                       {"shape", "shape", 8, true},
                                       {"bytes", "bytes"},
                                       {"file", "file", 8, true}};
  WriteRecords(options.output, columns, tensors, std::cout);
}

const char* VerdictText(FitVerdict verdict) {
  switch (verdict) {
    case FitVerdict::kUnknown:
      return "-";
    case FitVerdict::kAllKept:
      return "yes";
    case FitVerdict::kRecomputed:
      return "yes, by recomputing or offloading";
    case FitVerdict::kNo:
      break;
  }
  return "no";
}

Record FitRecord(const FitAnswer& answer, const OutputOptions& output) {
  const auto bytes = [&](int64_t value) {
    return output.format == OutputFormat::kJson ? Record(value) : Record(HumanBytes(static_cast<double>(value)));
  };
  Record record;
  record["dtype"] = answer.dtype;
  record["optimizer"] = answer.residency == v1::HOST ? "host" : "device";
  record["state_bytes"] = bytes(answer.state_bytes);
  record["apply_bytes"] = bytes(answer.apply_bytes);
  record["host_bytes"] = bytes(answer.host_bytes);
  record["all_kept_bytes"] = bytes(answer.all_kept_bytes);
  record["least_bytes"] = bytes(answer.least_bytes);
  record["usable_bytes"] = answer.usable_bytes > 0 ? bytes(answer.usable_bytes) : Record();
  record["fits"] = VerdictText(answer.verdict);
  return record;
}

absl::Status RunFit(const InspectOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig model, ReadModelShape(options.path));
  const int64_t positions = options.lengths.prompt + options.lengths.response;
  if (positions > model.max_positions) {
    return UsageError(absl::StrCat("--prompt ", options.lengths.prompt, " and --response ", options.lengths.response,
                                   " are ", positions, " tokens; the model has ", model.max_positions, " positions"));
  }
  const std::vector<std::string> dtypes =
      options.dtype.empty() ? std::vector<std::string>{"fp32", "bf16"} : std::vector<std::string>{options.dtype};
  std::vector<Record> records;
  for (const FitAnswer& answer :
       FitAnswers(model, dtypes, options.lengths, static_cast<int64_t>(options.device_bytes))) {
    records.push_back(FitRecord(answer, options.output));
  }
  if (options.output.format == OutputFormat::kTable) {
    std::cout << options.path << ": " << HumanCount(static_cast<double>(model.num_parameters()))
              << " parameters; a group of " << options.lengths.rollouts << " rollouts, prompt "
              << options.lengths.prompt << ", response " << options.lengths.response << "\n";
    if (options.device_bytes > 0) {
      std::cout << "device: " << HumanBytes(static_cast<double>(options.device_bytes))
                << ", of which a server leaves 1/16 to the runtime\n";
    }
    std::cout << "\n";
  }
  const std::vector<Column> columns = {
      {"dtype", "dtype", 5, true},      {"optimizer", "optimizer states", 9, true},  {"state_bytes", "state on device"},
      {"host_bytes", "in host memory"}, {"all_kept_bytes", "activations, all kept"}, {"least_bytes", "at least"},
      {"fits", "fits", 4, true}};
  WriteRecords(options.output, columns, records, std::cout);
  return absl::OkStatus();
}

absl::Status RunInspect(const InspectOptions& options) {
  if (options.fit && options.tensors) {
    return UsageError("--fit reads no weights, and --tensors lists them: give one of the two");
  }
  if (options.fit) return RunFit(options);
  const auto directory = OpenModelDirectory(options.path);
  if (!directory.ok()) return UsageError(std::string(directory.status().message()));
  const std::vector<Record> tensors = TensorRecords(*directory);
  if (options.tensors) {
    PrintTensors(options, tensors);
    return absl::OkStatus();
  }
  uint64_t bytes = 0;
  std::map<std::string, int64_t> dtypes;
  for (const Record& tensor : tensors) {
    bytes += tensor["bytes"].get<uint64_t>();
    ++dtypes[tensor["dtype"].get<std::string>()];
  }
  Record record;
  record["path"] = directory->path;
  record.update(ConfigRecord(directory->config));
  record["shards"] = directory->shards.size();
  record["tensors"] = tensors.size();
  record["weight_bytes"] = bytes;
  record["tensors_by_dtype"] = dtypes;
  std::vector<std::string> other_files;
  for (const auto& [name, path] : directory->other_files) other_files.push_back(name);
  record["other_files"] = other_files;
  WriteFields(options.output, record, std::cout);
  return absl::OkStatus();
}

void AddArchitectureOptions(CLI::App* command, InitOptions* options) {
  ModelConfig& config = options->config;
  const auto add_size = [command](const std::string& name, int64_t& size, int64_t value, const std::string& help) {
    size = value;
    CLI::Option* option = command->add_option(name, size, help)->check(Whole(1), "")->type_name("N");
    if (value > 0) option->capture_default_str();
  };
  config.model_type = "qwen3";
  std::vector<std::string> families;
  for (const Family& family : Families()) families.emplace_back(family.model_type);
  command->add_option("--family", config.model_type, "Architecture")
      ->check(OneOf(families), "")
      ->type_name(absl::StrJoin(families, "|"))
      ->capture_default_str();
  add_size("--vocab", config.vocab_size, 512, "Vocabulary");
  add_size("--hidden", config.hidden_size, 64, "Hidden size");
  add_size("--layers", config.num_layers, 2, "Layers");
  add_size("--heads", config.num_heads, 4, "Query heads");
  add_size("--kv-heads", config.num_kv_heads, 2, "K/V heads");
  add_size("--head-size", config.head_size, 0, "Size of a head (default: hidden / heads)");
  add_size("--ffn", config.ffn_size, 0, "Width of the MLP, with experts of each (default: 3 x hidden)");
  add_size("--experts", options->experts, 0, "MLPs of a layer, in a family with experts (default: 8)");
  add_size("--experts-per-token", options->experts_per_token, 0, "Experts that a token passes (default: 2)");
  command->add_flag("--raw-expert-weights", options->raw_expert_weights,
                    "Weigh a token's experts by their probabilities as they are (default: made to sum to one)");
  add_size("--max-positions", config.max_positions, 4096, "Longest prompt and response together");
  config.rope_theta = 10000;
  AddNumber(command, "--rope-theta", config.rope_theta, "Base of rotary positions", kAboveZero)
      ->type_name("X")
      ->capture_default_str();
  command->add_flag("--llama3-rope", options->llama3_rope, "Stretch rotary positions as Llama 3.x does");
  config.rms_norm_eps = 1e-6;
  AddNumber(command, "--rms-norm-eps", config.rms_norm_eps, "Epsilon of the norms", kAboveZero)
      ->type_name("X")
      ->capture_default_str();
  command->add_flag("--tied", config.tie_word_embeddings, "One tensor for embedding and head");
}

void AddInit(CLI::App* model, Runner& run) {
  auto options = std::make_shared<InitOptions>();
  CLI::App* command = model->add_subcommand(
      "init", "Make a random model as a Hugging Face directory, the same on every machine for the same seed");
  command->add_option("DIR", options->path, "Directory to create")->required()->type_name("DIR");
  AddArchitectureOptions(command, options.get());
  command->add_option("--seed", options->init.seed, "The same seed gives the same bytes")
      ->check(Whole(0, UINT64_MAX), "")
      ->type_name("N")
      ->capture_default_str();
  using safetensors::Dtype;
  AddWord<Dtype>(
      command, "--dtype", options->init.dtype,
      {{"float32", Dtype::kF32}, {"float64", Dtype::kF64}, {"bfloat16", Dtype::kBF16}, {"float16", Dtype::kF16}},
      "Type of the numbers in the files")
      ->transform(&LongDtypeName, "")
      ->type_name("fp32|fp64|bf16|fp16")
      ->default_str("fp32");
  AddNumber(command, "--weight-std", options->init.weight_std, "Deviation of matrices and embeddings", kFromZero)
      ->type_name("X")
      ->capture_default_str();
  AddNumber(command, "--norm-std", options->init.norm_std, "Deviation of norm weights around 1", kFromZero)
      ->type_name("X")
      ->capture_default_str();
  AddBytes(command, "--shard-bytes", options->init.max_shard_bytes,
           "Cut into shards of at most this, e.g. 2GB; 0: one file")
      ->type_name("BYTES")
      ->capture_default_str();
  command->add_option("--eos-token-id", options->eos_token_id, "Written to config.json and generation_config.json")
      ->check(Whole(0, kTokenIdMax), "")
      ->type_name("N");
  SetExamples(
      command,
      "  stemma model init tiny --family qwen3 --hidden 64 --layers 2 --seed 1\n"
      "  stemma model init mid --family llama --hidden 256 --layers 4 --heads 8 --kv-heads 4 --vocab 2048 --tied");
  command->callback([&run, options] { run = [options] { return RunInit(*options); }; });
}

void AddFitOptions(CLI::App* command, InspectOptions* options) {
  CLI::Option* fit = command->add_flag(
      "--fit", options->fit, "Say what training it needs of a device, and what fits; no weights and no server needed");
  const auto add_length = [&](const std::string& name, int64_t& length, const std::string& help) {
    command->add_option(name, length, help)
        ->check(Whole(1, uint64_t{1} << 30), "")
        ->type_name("N")
        ->capture_default_str()
        ->needs(fit);
  };
  add_length("--prompt", options->lengths.prompt, "Tokens of the prompt");
  add_length("--response", options->lengths.response, "Tokens of each response");
  add_length("--rollouts", options->lengths.rollouts, "Rollouts of the group");
  AddBytes(command, "--device-memory", options->device_bytes, "Memory of the device, e.g. 80GB")
      ->type_name("BYTES")
      ->needs(fit);
  command->add_option("--dtype", options->dtype, "What to compute in (default: fp32 and bf16)")
      ->check(OneOf({"fp32", "fp64", "bf16"}), "")
      ->transform(&ShortDtypeName, "")
      ->type_name("fp32|fp64|bf16")
      ->needs(fit);
}

void AddInspect(CLI::App* model, Runner& run) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = model->add_subcommand("inspect", "Check a model directory and show what it holds");
  command
      ->add_option("MODEL", options->path, "Hugging Face directory; with --fit also a config.json or a size (qwen3-8b)")
      ->required()
      ->type_name("MODEL");
  command->add_flag("--tensors", options->tensors, "List every tensor instead");
  AddFitOptions(command, options.get());
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma model inspect tiny\n"
              "  stemma model inspect tiny --tensors -o json\n"
              "  stemma model inspect qwen3-8b --fit --device-memory 80GB --prompt 2048 --response 1024 --rollouts 16");
  command->callback([&run, options] { run = [options] { return RunInspect(*options); }; });
}

}  // namespace

void AddModelCommand(CLI::App& app, Runner& run) {
  CLI::App* model = app.add_subcommand("model", "Make or inspect a model directory");
  model->require_subcommand(1);
  AddInit(model, run);
  AddInspect(model, run);
}

}  // namespace stemma::cli
