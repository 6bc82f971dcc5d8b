#include "server/main/mesh_ranking_options.h"

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/command_line_options.h"
#include "common/base/mesh.h"
#include "common/base/parse_options.h"
#include "common/base/run_config.h"
#include "common/model/model_directory.h"

namespace stemma::server {
namespace {

constexpr uint32_t kRequestsMax = 4096;
constexpr uint64_t kBytesMax = uint64_t{1} << 50;

struct Flags {
  std::string config_file, model, dtype, memory_budget, host_memory, device_memory;
  uint32_t threads = 0;
};

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names = PublishedDeviceNames();
  names.insert(names.begin(), "cpu");
  return names;
}

void AddFlags(CLI::App& app, Flags& flags, MeshRankingOptions& options) {
  app.add_option("--model", flags.model, "Hugging Face directory of the model, or its config.json");
  app.add_option("--config", flags.config_file, "run.yaml; flags override it");
  app.add_option("--trace", options.trace, "trace file (.jsonl)")->required();
  app.add_option("--ranks", options.ranks, "how many ranks the meshes have")->check(CLI::Range(1u, kRanksMax));
  app.add_option("--requests", options.requests, "plans so many requests of the trace, the first ones")
      ->check(CLI::Range(1u, kRequestsMax));
  app.add_option("--device", options.device, "what each rank has")->check(CLI::IsMember(DeviceNames()));
  app.add_option("--device-memory", flags.device_memory, "bytes of each rank's device (default: by --device)");
  app.add_option("--dtype", flags.dtype, "fp32, fp64 or bf16, or their long names (default fp32)");
  app.add_option("--memory-budget", flags.memory_budget,
                 "bytes of the device for the model's state and activations (default: by its memory)");
  app.add_option("--host-memory", flags.host_memory, "bytes of each rank's host memory for what leaves the device");
  app.add_option("--threads", flags.threads, "of each rank's compute, on cpu (default: this machine's, divided)");
  AddNumber(&app, "--link-bytes-per-s", options.link_bytes_per_s, "bytes a second that a rank sends to others",
            kAboveZero);
  AddNumber(&app, "--link-latency-us", options.link_latency_us, "microseconds of a message beside its bytes",
            kFromZero);
}

// Returns 0 where the option is not given.
uint64_t ReadBytes(const std::string& option, const std::string& text, std::vector<std::string>& problems) {
  if (text.empty()) return 0;
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) {
    problems.push_back(absl::StrCat(option, ": ", bytes.status().message()));
  } else if (*bytes == 0 || *bytes > kBytesMax) {
    problems.push_back(absl::StrCat(option, ": \"", text, "\" is no memory of a machine: give a size such as 80GB"));
  } else {
    return *bytes;
  }
  return 0;
}

// Reads the file, if there is one, and the flags over it. The file's mesh is no matter: all of them are asked for.
void ReadConfig(const Flags& flags, v1::RunConfig& config, std::vector<std::string>& problems) {
  ParsedRunConfig parsed;
  if (!flags.config_file.empty()) {
    absl::StatusOr<ParsedRunConfig> read = ReadRunConfig(flags.config_file);
    if (!read.ok()) {
      problems.emplace_back(read.status().message());
      return;
    }
    parsed = *std::move(read);
  }
  if (!flags.model.empty()) parsed.config.set_model(flags.model);
  if (!flags.dtype.empty()) parsed.config.set_dtype(flags.dtype);
  if (flags.threads > 0) parsed.config.set_threads(flags.threads);
  const uint64_t budget = ReadBytes("--memory-budget", flags.memory_budget, problems);
  const uint64_t host = ReadBytes("--host-memory", flags.host_memory, problems);
  if (budget > 0) parsed.config.set_memory_budget_bytes(budget);
  if (host > 0) parsed.config.set_host_memory_bytes(host);
  FillDefaults(parsed.config);
  Validate(parsed);
  const std::string source = flags.config_file.empty() ? "command line" : flags.config_file;
  if (const absl::Status status = ToStatus(source, parsed); !status.ok()) problems.emplace_back(status.message());
  config = parsed.config;
}

void OpenModel(const Flags& flags, MeshRankingOptions& options, std::vector<std::string>& problems) {
  if (options.config.model().empty()) return;  // reported already
  absl::StatusOr<ModelConfig> model = ReadModelConfig(options.config.model());
  if (model.ok()) {
    options.model = *std::move(model);
  } else {
    problems.push_back(absl::StrCat(flags.model.empty() ? "model of run.yaml: " : "--model: ", model.status().message(),
                                    "; give a Hugging Face directory, or its config.json"));
  }
}

}  // namespace

bool ReadMeshRankingOptions(int argc, char** argv, MeshRankingOptions& options, std::vector<std::string>& problems,
                            int& exit_code) {
  CLI::App app("Ranks the meshes of so many ranks by a trace, for `stemma mesh`: prints JSON, serves nothing.",
               absl::StrCat("stemma-server ", kRankMeshes));
  SetHelpStyle(app);
  Flags flags;
  AddFlags(app, flags, options);
  if (const std::optional<int> parsed = ParseOptions(app, argc, argv)) {
    exit_code = *parsed;
    return false;
  }
  options.published = FindPublishedDevice(options.device);
  options.device_bytes = ReadBytes("--device-memory", flags.device_memory, problems);
  ReadConfig(flags, options.config, problems);
  OpenModel(flags, options, problems);
  return true;
}

}  // namespace stemma::server
