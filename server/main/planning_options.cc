#include "server/main/planning_options.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/admission/run_numbers.h"
#include "common/admission/traced_request.h"
#include "common/base/byte_size.h"
#include "common/base/option_checks.h"
#include "common/base/parallel_for.h"
#include "common/base/parse_options.h"
#include "common/base/run_config.h"
#include "common/base/status_macros.h"
#include "common/base/system_memory.h"
#include "common/model/model_directory.h"
#include "common/trace/trace.h"
#include "nlohmann/json.hpp"
#include "server/protocol/host_shares.h"
#include "server/protocol/request_plan.h"

namespace stemma::server {
namespace {

constexpr int kWrongConfiguration = 2;  // the exit code
constexpr uint32_t kRequestsMax = 4096;
constexpr uint64_t kBytesMax = uint64_t{1} << 50;

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names = PublishedDeviceNames();
  names.insert(names.begin(), "cpu");
  return names;
}

// Returns 0 where the option is not given.
uint64_t ReadMemory(const std::string& option, const std::string& text, std::vector<std::string>& problems) {
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
void ReadPlanningConfig(const PlanningFlags& flags, v1::RunConfig& config, std::vector<std::string>& problems) {
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
  const uint64_t budget = ReadMemory("--memory-budget", flags.memory_budget, problems);
  const uint64_t host = ReadMemory("--host-memory", flags.host_memory, problems);
  if (budget > 0) parsed.config.set_memory_budget_bytes(budget);
  if (host > 0) parsed.config.set_host_memory_bytes(host);
  FillDefaults(parsed.config);
  Validate(parsed);
  const std::string source = flags.config_file.empty() ? "command line" : flags.config_file;
  if (const absl::Status status = ToStatus(source, parsed); !status.ok()) problems.emplace_back(status.message());
  config = parsed.config;
}

void OpenPlannedModel(const PlanningFlags& flags, PlanningOptions& options, std::vector<std::string>& problems) {
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

void AddPlanningFlags(CLI::App& app, PlanningFlags& flags, PlanningOptions& options) {
  app.add_option("--model", flags.model, "Hugging Face directory of the model, or its config.json");
  app.add_option("--config", flags.config_file, "run.yaml; flags override it");
  app.add_option("--trace", options.trace, "trace file (.jsonl)")->required();
  app.add_option("--requests", options.requests, "plans so many requests of the trace, the first ones")
      ->check(Whole(1, kRequestsMax), "");
  app.add_option("--device", options.device, "what each rank has")->check(OneOf(DeviceNames()), "");
  app.add_option("--device-memory", flags.device_memory, "bytes of each rank's device (default: by --device)");
  app.add_option("--dtype", flags.dtype, "fp32, fp64 or bf16, or their long names (default fp32)");
  app.add_option("--memory-budget", flags.memory_budget,
                 "bytes of the device for the model's state and activations (default: by its memory)");
  app.add_option("--host-memory", flags.host_memory, "bytes of each rank's host memory for what leaves the device");
  app.add_option("--threads", flags.threads, "of each rank's compute, on cpu (default: this machine's, divided)")
      ->check(Whole(0, UINT32_MAX), "");
}

void ReadPlanningOptions(const PlanningFlags& flags, PlanningOptions& options, std::vector<std::string>& problems) {
  options.published = FindPublishedDevice(options.device);
  options.device_bytes = ReadMemory("--device-memory", flags.device_memory, problems);
  ReadPlanningConfig(flags, options.config, problems);
  if (flags.threads > 0) RefuseOnDevice("--threads", options, problems);
  // Threads are the CPU's, and so is the scratch of each: a run.yaml that has them plans for GPUs as one that has none.
  if (options.published != nullptr) options.config.clear_threads();
  OpenPlannedModel(flags, options, problems);
}

void RefuseOnDevice(const std::string& name, const PlanningOptions& options, std::vector<std::string>& problems) {
  if (options.published == nullptr) return;
  problems.push_back(
      absl::StrCat(name, ": is for ranks on cpu, and --device is ", options.device, ": leave one of the two out"));
}

absl::StatusOr<TraceRequests> ReadTrace(const PlanningOptions& options) {
  absl::StatusOr<TraceReader> reader = TraceReader::Open(options.trace);
  if (!reader.ok()) return absl::InvalidArgumentError(absl::StrCat("--trace: ", reader.status().message()));
  TraceRequests read;
  while (true) {
    ASSIGN_OR_RETURN(std::optional<TraceLine> line, reader->Next());
    read.more = line && read.requests.size() == options.requests;
    if (!line || read.more) break;
    const std::string name = absl::StrCat("line ", line->line);
    const auto request = BuildTraced(std::move(line->request), options.config.limits(), options.model,
                                     NumbersOfRun(RunDtypeOf(options.config.dtype())));
    if (!request.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(options.trace, ": ", name, ": ",
                                                     WithPathsOfLine(std::string(request.status().message())),
                                                     "; `stemma trace check ", options.trace, "` lists every problem"));
    }
    read.requests.push_back({absl::StrCat("the request on ", name), PlannerRequestOf(**request, options.config)});
  }
  if (read.requests.empty()) return absl::InvalidArgumentError(absl::StrCat(options.trace, ": holds no request"));
  return read;
}

WorkerMemory MemoryOf(const PlanningOptions& options, uint32_t ranks) {
  const auto given = static_cast<int64_t>(options.device_bytes);
  if (options.published == nullptr) {
    if (given > 0) return {.device_free_bytes = given, .host_free_bytes = 0, .device_bytes = given};
    return ShareOf({AvailableMemoryBytes(), 0, MachineMemoryBytes()}, ranks);
  }
  WorkerMemory memory = options.published->memory;
  if (given > 0) memory.device_free_bytes = memory.device_bytes = given;
  if (options.config.host_memory_bytes() > 0) {
    memory.host_free_bytes = static_cast<int64_t>(options.config.host_memory_bytes());
  }
  return memory;
}

void DivideThreads(uint32_t ranks, PlanningOptions& options) {
  if (options.published != nullptr || options.config.threads() > 0) return;
  options.config.set_threads(std::max(static_cast<uint32_t>(MachineThreads()) / ranks, 1u));
}

Rates RatesOf(const PlanningOptions& options, v1::OptimizerResidency residency) {
  const RunDtype dtype = RunDtypeOf(options.config.dtype());
  return options.published == nullptr ? DefaultRates(dtype, options.config.threads(), options.device, residency)
                                      : RatesOf(*options.published, dtype, residency);
}

int Refuse(const std::vector<std::string>& problems) {
  const nlohmann::ordered_json answer = {{"problems", problems}};
  std::cout << answer.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  return kWrongConfiguration;
}

}  // namespace stemma::server
