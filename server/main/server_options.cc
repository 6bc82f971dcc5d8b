#include "server/main/server_options.h"

#include <filesystem>
#include <iostream>
#include <map>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/run_config.h"
#include "common/stop_times.h"
#include "server/core/memory_division.h"

namespace stemma {
namespace {

struct Flags {
  std::string config_file, model, dtype, schedule, layout, prefix_policy, suffix_policy, offload, optimizer_residency;
  std::string listen = "127.0.0.1:0";
  std::string data = "stemma-data";
  std::string ready_file;
  uint64_t memory_budget = 0, host_memory = 0;
  uint32_t wave_suffixes = 0, threads = 0, prefix_block_rows = 0;
  uint32_t drain_timeout_s = static_cast<uint32_t>(absl::ToInt64Seconds(kDrainWithin));
  bool insecure = false, check_config = false, die_with_parent = false;
};

constexpr uint32_t kDrainTimeoutMaxS = 24 * 3600;

const std::map<std::string, v1::Schedule> kSchedules = {{"auto", v1::AUTO}, {"reuse", v1::REUSE}, {"dense", v1::DENSE}};
const std::map<std::string, v1::WaveLayout> kLayouts = {
    {"one_by_one", v1::ONE_BY_ONE}, {"padded", v1::PADDED}, {"packed", v1::PACKED}};
const std::map<std::string, v1::TapePolicy> kPrefixPolicies = {{"s0", v1::S0}, {"s1", v1::S1}, {"s2", v1::S2},
                                                               {"s3", v1::S3}, {"s4", v1::S4}, {"s5", v1::S5}};
const std::map<std::string, v1::TapePolicy> kSuffixPolicies = {
    {"s0", v1::S0}, {"s1", v1::S1}, {"s2", v1::S2}, {"s3", v1::S3}, {"s4", v1::S4}};
const std::map<std::string, v1::Offload> kOffloads = {{"on", v1::OFFLOAD_ON}, {"off", v1::OFFLOAD_OFF}};
const std::map<std::string, v1::OptimizerResidency> kResidencies = {{"device", v1::DEVICE}, {"host", v1::HOST}};

template <typename Map>
std::vector<std::string> KeysOf(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

void AddMemoryFlags(CLI::App& app, Flags& flags) {
  app.add_option("--memory-budget", flags.memory_budget,
                 "bytes of the device for the model's state and activations, e.g. 20GB (default: by what it has free)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app.add_option("--host-memory", flags.host_memory,
                 "bytes of host memory for what leaves the device (default: by what the host has free)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app.add_option("--prefix-policy", flags.prefix_policy, "forces what a prefix's tape keeps: s0 (all) to s5 (nothing)")
      ->check(CLI::IsMember(KeysOf(kPrefixPolicies)));
  app.add_option("--suffix-policy", flags.suffix_policy, "forces what a suffix's tape keeps: s0 (all) to s4")
      ->check(CLI::IsMember(KeysOf(kSuffixPolicies)));
  app.add_option("--prefix-block-rows", flags.prefix_block_rows, "forces prefixes in blocks of so many rows");
  app.add_option("--offload", flags.offload,
                 "forces the prefixes' tape into host memory during Phase B, or not: on, off")
      ->check(CLI::IsMember(KeysOf(kOffloads)));
  app.add_option("--optimizer-residency", flags.optimizer_residency,
                 "forces where optimizer states live: device or host (default: by the budget)")
      ->check(CLI::IsMember(KeysOf(kResidencies)));
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", STEMMA_VERSION);
  app.add_option("--model", flags.model, "Hugging Face directory of the model");
  app.add_option("--config", flags.config_file, "run.yaml; flags override it");
  app.add_option("--dtype", flags.dtype, "fp32, fp64 or bf16 (default fp32)");
  app.add_option("--schedule", flags.schedule, "auto, reuse or dense (default auto)")
      ->check(CLI::IsMember(KeysOf(kSchedules)));
  app.add_option("--layout", flags.layout, "forces a wave layout: one_by_one, padded or packed")
      ->check(CLI::IsMember(KeysOf(kLayouts)));
  app.add_option("--wave-suffixes", flags.wave_suffixes, "forces so many suffixes per wave");
  AddMemoryFlags(app, flags);
  app.add_option("--threads", flags.threads, "of the worker's compute (default: all cores)");
  app.add_option("--listen", flags.listen, "host:port; port 0 takes a free one")->capture_default_str();
  app.add_option("--data", flags.data, "directory for exports")->capture_default_str();
  app.add_option("--ready-file", flags.ready_file, "the address is written here, one line, once the port serves");
  app.add_option("--drain-timeout", flags.drain_timeout_s,
                 "after SIGTERM or SIGINT, seconds for what runs to end its step, log-prob pass or export")
      ->check(CLI::Range(kDrainTimeoutMaxS))
      ->capture_default_str();
  app.add_flag("--insecure", flags.insecure, "allow plaintext beyond loopback");
  app.add_flag("--check-config", flags.check_config, "check configuration and model directory, then exit");
  app.add_flag("--die-with-parent", flags.die_with_parent, "end when the starting process ends");
}

void Override(const Flags& flags, v1::RunConfig& config) {
  if (!flags.model.empty()) config.set_model(flags.model);
  if (!flags.dtype.empty()) config.set_dtype(flags.dtype);
  if (!flags.schedule.empty()) config.set_schedule(kSchedules.at(flags.schedule));
  if (!flags.layout.empty()) config.set_layout(kLayouts.at(flags.layout));
  if (flags.wave_suffixes > 0) config.set_wave_suffixes(flags.wave_suffixes);
  if (flags.memory_budget > 0) config.set_memory_budget_bytes(flags.memory_budget);
  if (flags.host_memory > 0) config.set_host_memory_bytes(flags.host_memory);
  if (!flags.prefix_policy.empty()) config.set_prefix_policy(kPrefixPolicies.at(flags.prefix_policy));
  if (!flags.suffix_policy.empty()) config.set_suffix_policy(kSuffixPolicies.at(flags.suffix_policy));
  if (flags.prefix_block_rows > 0) config.set_prefix_block_rows(flags.prefix_block_rows);
  if (!flags.offload.empty()) config.set_offload(kOffloads.at(flags.offload));
  if (!flags.optimizer_residency.empty()) {
    config.set_optimizer_residency(kResidencies.at(flags.optimizer_residency));
  }
  if (flags.threads > 0) config.set_threads(flags.threads);
}

bool IsLoopback(const std::string& listen) {
  return absl::StartsWith(listen, "127.") || absl::StartsWith(listen, "localhost:") ||
         absl::StartsWith(listen, "[::1]:") || absl::StartsWith(listen, "unix:");
}

// Reads the file if there is one; adds what is wrong to `problems`.
v1::RunConfig ReadConfig(const Flags& flags, std::vector<std::string>& problems) {
  ParsedRunConfig parsed;
  if (!flags.config_file.empty()) {
    absl::StatusOr<ParsedRunConfig> read = ReadRunConfig(flags.config_file);
    if (!read.ok()) {
      problems.emplace_back(read.status().message());
    } else {
      parsed = *std::move(read);
    }
  }
  Override(flags, parsed.config);
  FillDefaults(parsed.config);
  Validate(parsed);
  const std::string source = flags.config_file.empty() ? "command line" : flags.config_file;
  if (const absl::Status status = ToStatus(source, parsed); !status.ok()) problems.emplace_back(status.message());
  return parsed.config;
}

void OpenModel(ServerMainOptions& options, std::vector<std::string>& problems) {
  if (options.config.model().empty()) return;  // reported already
  const absl::StatusOr<ModelDirectory> directory = OpenModelDirectory(options.config.model());
  if (!directory.ok()) {
    problems.emplace_back(directory.status().message());
    return;
  }
  options.model = directory->config;
  if (const absl::Status status = CheckMemory(options.model, options.config); !status.ok()) {
    problems.emplace_back(status.message());
  }
  options.config.set_model(std::filesystem::absolute(options.config.model()).string());
}

void PrepareData(const Flags& flags, ServerMainOptions& options, std::vector<std::string>& problems) {
  std::error_code error;
  const std::filesystem::path data = std::filesystem::absolute(flags.data);
  std::filesystem::create_directories(data, error);
  if (error) problems.push_back(absl::StrCat("--data ", flags.data, ": ", error.message()));
  options.data_directory = data.string();
}

}  // namespace

bool ReadServerOptions(int argc, char** argv, ServerMainOptions& options, int& exit_code) {
  CLI::App app("The coordinator of Stemma: serves clients, plans, and drives one worker.");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  std::vector<std::string> problems;
  options.config = ReadConfig(flags, problems);
  OpenModel(options, problems);
  if (!flags.check_config) PrepareData(flags, options, problems);
  if (!IsLoopback(flags.listen) && !flags.insecure) {
    problems.push_back(absl::StrCat("--listen ", flags.listen,
                                    " is reachable from outside this machine in plaintext; add --insecure to do so"));
  }
  options.listen = flags.listen;
  options.ready_file = flags.ready_file;
  options.drain_within = absl::Seconds(flags.drain_timeout_s);
  options.check_config = flags.check_config;
  options.die_with_parent = flags.die_with_parent;
  for (const std::string& problem : problems) std::cerr << "stemma-server: " << problem << "\n";
  exit_code = problems.empty() ? 0 : 2;
  return problems.empty();
}

}  // namespace stemma
