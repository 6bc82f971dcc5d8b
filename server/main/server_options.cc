#include "server/main/server_options.h"

#include <cstdlib>
#include <filesystem>
#include <map>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/clock.h"
#include "common/base/command_line_options.h"
#include "common/base/dtype_names.h"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"
#include "common/base/parse_options.h"
#include "common/base/ready_file.h"
#include "common/base/run_config.h"
#include "common/base/stop_times.h"
#include "common/base/tls_options.h"
#include "common/base/utf8.h"
#include "common/base/worker_secret.h"
#include "common/base/worker_version.h"
#include "common/model/mesh_rules.h"
#include "common/rpc/tls_check.h"
#include "server/planner/memory_division.h"

namespace stemma::server {
namespace {

constexpr double kWorkerLostAfterMinS = 4, kWorkerLostAfterMaxS = 86400;  // more than three heartbeats
constexpr double kWorkerStalledAfterMaxS = 7 * 86400;

struct Flags {
  std::string config_file, model, dtype, schedule, layout, prefix_policy, suffix_policy, offload, optimizer_residency;
  std::string listen = "127.0.0.1:0", worker_listen = "127.0.0.1:0", ops_listen = "127.0.0.1:0";
  std::optional<std::string> metrics_listen;
  std::string worker_secret_file;
  TlsFiles tls;
  std::string data = "stemma-data";
  std::string ready_file, resume = "auto";
  std::string memory_budget, host_memory, mesh, split_groups, shard_parameters, prefix_kv, reduce_gradients, durability;
  double worker_lost_after_s = 10, worker_stalled_after_s = 300;
  std::optional<uint32_t> wave_suffixes, threads, prefix_block_rows;  // 0 overrides the file, too
  uint32_t drain_timeout_s = static_cast<uint32_t>(absl::ToInt64Seconds(kDrainWithin));
  bool insecure = false, reflection = false, check_config = false, die_with_parent = false;
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
const std::map<std::string, v1::Split> kSplits = {
    {"auto", v1::SPLIT_AUTO}, {"on", v1::SPLIT_ON}, {"off", v1::SPLIT_OFF}};
const std::map<std::string, v1::ShardParameters> kShardings = {
    {"auto", v1::SHARD_PARAMETERS_AUTO}, {"on", v1::SHARD_PARAMETERS_ON}, {"off", v1::SHARD_PARAMETERS_OFF}};
const std::map<std::string, v1::PrefixKv> kPrefixKvs = {
    {"auto", v1::PREFIX_KV_AUTO}, {"hold", v1::PREFIX_KV_HOLD}, {"regather", v1::PREFIX_KV_REGATHER}};
const std::map<std::string, v1::ReduceGradients> kReductions = {
    {"auto", v1::REDUCE_GRADIENTS_AUTO}, {"sweep", v1::REDUCE_GRADIENTS_SWEEP}, {"step", v1::REDUCE_GRADIENTS_STEP}};
const std::map<std::string, v1::Durability> kDurabilities = {{"rewind", v1::REWIND}, {"replay", v1::REPLAY}};

template <typename Map>
std::vector<std::string> KeysOf(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

void AddMemoryFlags(CLI::App& app, Flags& flags) {
  app.add_option("--memory-budget", flags.memory_budget,
                 "bytes of the device for the model's state and activations, e.g. 20GB (default: by what it has free)");
  app.add_option("--host-memory", flags.host_memory,
                 "bytes of host memory for what leaves the device (default: by what the host has free)");
  app.add_option("--prefix-policy", flags.prefix_policy, "forces what a prefix's tape keeps: s0 (all) to s5 (K and V)")
      ->check(OneOf(KeysOf(kPrefixPolicies)), "");
  app.add_option("--suffix-policy", flags.suffix_policy, "forces what a suffix's tape keeps: s0 (all) to s4")
      ->check(OneOf(KeysOf(kSuffixPolicies)), "");
  app.add_option("--prefix-block-rows", flags.prefix_block_rows, "forces prefixes in blocks of so many rows")
      ->check(Whole(0, UINT32_MAX), "");
  app.add_option("--offload", flags.offload,
                 "forces the prefixes' tape into host memory during Phase B, or not: on, off")
      ->check(OneOf(KeysOf(kOffloads)), "");
  app.add_option("--optimizer-residency", flags.optimizer_residency,
                 "forces where optimizer states live: device or host (default: by the budget)")
      ->check(OneOf(KeysOf(kResidencies)), "");
}

void AddListenFlags(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen, "host:port for clients; port 0 takes a free one")->capture_default_str();
  app.add_option("--worker-listen", flags.worker_listen, "host:port for workers")->capture_default_str();
  app.add_option("--ops-listen", flags.ops_listen, "host:port for health checks")->capture_default_str();
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "host:port where Prometheus reads /metrics, over HTTP (default: nowhere)");
  app.add_flag("--insecure", flags.insecure, "allow plaintext beyond loopback, where there is no TLS");
  AddServerTlsOptions(&app, flags.tls);
  app.add_flag(
      "--reflection", flags.reflection,
      "let clients ask what calls there are, as grpcurl does; each of these calls is a thread while it is open");
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", WorkerVersion());
  app.add_option("--model", flags.model, "Hugging Face directory of the model");
  app.add_option("--config", flags.config_file, "run.yaml; flags override it");
  app.add_option("--dtype", flags.dtype, "fp32, fp64 or bf16, or their long names (default fp32)");
  app.add_option("--schedule", flags.schedule, "auto, reuse or dense (default auto)")
      ->check(OneOf(KeysOf(kSchedules)), "");
  app.add_option("--layout", flags.layout, "forces a wave layout: one_by_one, padded or packed")
      ->check(OneOf(KeysOf(kLayouts)), "");
  app.add_option("--wave-suffixes", flags.wave_suffixes, "forces so many suffixes per wave")
      ->check(Whole(0, UINT32_MAX), "");
  AddMemoryFlags(app, flags);
  app.add_option(
      "--mesh", flags.mesh,
      "how many ranks each axis has, e.g. dp=2,tp=2; each is a worker (default: one rank); ep deals experts");
  app.add_option("--split-groups", flags.split_groups,
                 "whether several ranks may share one group's rollouts: auto (where that is faster), on, off")
      ->check(OneOf(KeysOf(kSplits)), "");
  app.add_option(
         "--shard-parameters", flags.shard_parameters,
         "whether ranks divide parameters and gradients too, and gather each layer when it runs: auto (where the "
         "longest context would not fit else), on, off")
      ->check(OneOf(KeysOf(kShardings)), "");
  app.add_option("--prefix-kv", flags.prefix_kv,
                 "how context-parallel ranks keep a prefix's K/V: hold (each those of all rows), regather (each its "
                 "own, and gathers the others layer by layer), auto (the faster that fits)")
      ->check(OneOf(KeysOf(kPrefixKvs)), "");
  app.add_option(
         "--reduce-gradients", flags.reduce_gradients,
         "when ranks that divide the parameters hand gradients to their owners: sweep (of each wave, and of the "
         "prefixes), step (once, and hold the whole model's until then), auto (the faster that fits)")
      ->check(OneOf(KeysOf(kReductions)), "");
  app.add_option(
         "--durability", flags.durability,
         "what a loss of workers or server leaves of the steps: replay (all: requests are kept under --data and "
         "computed again), rewind (what a checkpoint holds, else the model directory; default replay)")
      ->check(OneOf(KeysOf(kDurabilities)), "");
  app.add_option("--threads", flags.threads, "of the worker's compute (default: all cores)")
      ->check(Whole(0, UINT32_MAX), "");
  AddListenFlags(app, flags);
  app.add_option("--worker-secret-file", flags.worker_secret_file,
                 "file of mode 0600 with the secret that admits workers (default: $STEMMA_WORKER_SECRET)");
  AddNumber(&app, "--worker-lost-after", flags.worker_lost_after_s,
            "seconds without a word of the worker after which it is given up; it speaks every second",
            {.min = kWorkerLostAfterMinS, .max = kWorkerLostAfterMaxS})
      ->capture_default_str();
  AddNumber(&app, "--worker-stalled-after", flags.worker_stalled_after_s,
            "seconds without progress of the worker's job after which it is given up, where 20 times what the plan "
            "predicts is not more",
            {.min = kWorkerLostAfterMinS, .max = kWorkerStalledAfterMaxS})
      ->capture_default_str();
  app.add_option(
         "--data", flags.data,
         "directory for the journal, kept requests, checkpoints, exports and measurements; one server at a time")
      ->capture_default_str();
  app.add_option("--resume", flags.resume,
                 "with what a --data directory begins that has no journal: auto (the newest checkpoint in it, or the "
                 "model directory where it has no folder of any; refused where none of its folders is whole), none, or "
                 "a checkpoint's name")
      ->capture_default_str();
  app.add_option("--ready-file", flags.ready_file,
                 "written once all listeners serve: the clients' address, then `workers ADDRESS`, `ops ADDRESS` and, "
                 "with --metrics-listen, `metrics ADDRESS`");
  app.add_option("--drain-timeout", flags.drain_timeout_s,
                 "after SIGTERM, SIGINT or SIGHUP, seconds for what runs to end its step, log-prob pass or export")
      ->check(Whole(0, kDrainTimeoutMaxS), "")
      ->capture_default_str();
  app.add_flag("--check-config", flags.check_config, "check configuration and model directory, then exit");
  app.add_flag("--die-with-parent", flags.die_with_parent, "end when the starting process ends");
}

void Override(const Flags& flags, v1::RunConfig& config) {
  if (!flags.model.empty()) config.set_model(flags.model);
  if (!flags.dtype.empty()) config.set_dtype(flags.dtype);
  if (!flags.schedule.empty()) config.set_schedule(kSchedules.at(flags.schedule));
  if (!flags.layout.empty()) config.set_layout(kLayouts.at(flags.layout));
  if (flags.wave_suffixes) config.set_wave_suffixes(*flags.wave_suffixes);
  if (!flags.prefix_policy.empty()) config.set_prefix_policy(kPrefixPolicies.at(flags.prefix_policy));
  if (!flags.suffix_policy.empty()) config.set_suffix_policy(kSuffixPolicies.at(flags.suffix_policy));
  if (flags.prefix_block_rows) config.set_prefix_block_rows(*flags.prefix_block_rows);
  if (!flags.offload.empty()) config.set_offload(kOffloads.at(flags.offload));
  if (!flags.optimizer_residency.empty()) {
    config.set_optimizer_residency(kResidencies.at(flags.optimizer_residency));
  }
  if (!flags.split_groups.empty()) config.set_split_groups(kSplits.at(flags.split_groups));
  if (!flags.shard_parameters.empty()) config.set_shard_parameters(kShardings.at(flags.shard_parameters));
  if (!flags.prefix_kv.empty()) config.set_prefix_kv(kPrefixKvs.at(flags.prefix_kv));
  if (!flags.reduce_gradients.empty()) config.set_reduce_gradients(kReductions.at(flags.reduce_gradients));
  if (!flags.durability.empty()) config.set_durability(kDurabilities.at(flags.durability));
  if (flags.threads) config.set_threads(*flags.threads);
}

uint64_t ReadBytes(const std::string& option, const std::string& text, std::vector<std::string>& problems) {
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (bytes.ok()) return *bytes;
  problems.push_back(absl::StrCat(option, ": ", bytes.status().message()));
  return 0;
}

// `remedy`: of one that is reachable from other machines; empty: it may be.
HostPort ReadListen(const std::string& option, const std::string& text, const std::string& remedy,
                    std::vector<std::string>& problems) {
  const absl::StatusOr<HostPort> address = ParseListenAddress(text);
  if (!address.ok()) {
    problems.push_back(absl::StrCat(option, ": ", address.status().message()));
    return {};
  }
  if (!address->loopback && !remedy.empty()) {
    problems.push_back(
        absl::StrCat(option, " ", text, " is reachable from outside this machine in plaintext; ", remedy));
  }
  return *address;
}

// Health and metrics are plaintext always, for who asks them speaks no TLS; they hold nothing of tokens or weights.
void ReadListeners(const Flags& flags, ServerMainOptions& options, std::vector<std::string>& problems) {
  const absl::Status tls = CheckTlsFiles(flags.tls, TlsSide::kServer, RealClock().Now()).status();
  if (!tls.ok()) problems.emplace_back(tls.message());
  options.tls = flags.tls;
  const bool open = flags.insecure || flags.tls.any();
  const std::string add = open ? "" : "add --insecure to do so";
  const std::string encrypt = open ? "" : absl::StrCat("give ", kTlsCertOption, " and ", kTlsKeyOption, ", or ", add);
  options.listen = ReadListen("--listen", flags.listen, encrypt, problems);
  options.worker_listen = ReadListen("--worker-listen", flags.worker_listen, encrypt, problems);
  options.ops_listen = ReadListen("--ops-listen", flags.ops_listen, add, problems);
  if (!flags.metrics_listen) return;
  options.metrics_listen = ReadListen("--metrics-listen", *flags.metrics_listen, add, problems);
  if (absl::StrContains(options.metrics_listen->host, ':')) {
    problems.push_back(absl::StrCat("--metrics-listen ", *flags.metrics_listen,
                                    ": metrics are served on an IPv4 address, or a name that has one"));
  }
}

// Without a secret no worker could be told from a client: there is no default.
std::string ReadSecret(const Flags& flags, std::vector<std::string>& problems) {
  const char* variable = std::getenv(kWorkerSecretVariable);
  if (flags.worker_secret_file.empty() && variable == nullptr) {
    if (flags.check_config) return "";
    problems.push_back(absl::StrCat("no secret for workers: give --worker-secret-file FILE (mode 0600), or set ",
                                    kWorkerSecretVariable, "; `stemma local` makes one by itself"));
    return "";
  }
  const absl::StatusOr<std::string> secret =
      flags.worker_secret_file.empty() ? WorkerSecretOf(variable) : ReadWorkerSecret(flags.worker_secret_file);
  if (secret.ok()) return *secret;
  problems.push_back(absl::StrCat(flags.worker_secret_file.empty() ? kWorkerSecretVariable : "--worker-secret-file",
                                  ": ", secret.status().message()));
  return "";
}

// Reads the file if there is one; adds what is wrong to `problems`.
v1::RunConfig ReadConfig(const Flags& flags, std::vector<std::string>& problems) {
  ParsedRunConfig parsed;
  if (!flags.config_file.empty()) {
    absl::StatusOr<ParsedRunConfig> read = ReadRunConfig(flags.config_file);
    if (!read.ok()) {  // nothing is known of what it says, so nothing of that is wrong or missing
      problems.emplace_back(read.status().message());
      return parsed.config;
    }
    parsed = *std::move(read);
  }
  Override(flags, parsed.config);
  if (!flags.memory_budget.empty()) {
    parsed.config.set_memory_budget_bytes(ReadBytes("--memory-budget", flags.memory_budget, problems));
  }
  if (!flags.host_memory.empty()) {
    parsed.config.set_host_memory_bytes(ReadBytes("--host-memory", flags.host_memory, problems));
  }
  if (!flags.mesh.empty()) {
    const absl::StatusOr<v1::Mesh> mesh = ParseMesh(flags.mesh);
    if (mesh.ok()) *parsed.config.mutable_mesh() = *mesh;
    if (!mesh.ok()) problems.push_back(absl::StrCat("--mesh: ", mesh.status().message()));
  }
  FillDefaults(parsed.config);
  Validate(parsed);
  const std::string source = flags.config_file.empty() ? "command line" : flags.config_file;
  if (const absl::Status status = ToStatus(source, parsed); !status.ok()) problems.emplace_back(status.message());
  return parsed.config;
}

void OpenModel(ServerMainOptions& options, std::vector<std::string>& problems) {
  if (options.config.model().empty()) return;  // reported already
  if (!IsUtf8(std::filesystem::absolute(options.config.model()).string())) {
    problems.emplace_back(
        "model: its path has bytes that are not UTF-8, which cannot be told to workers: choose another name");
    return;
  }
  const absl::StatusOr<ModelDirectory> directory = OpenModelDirectory(options.config.model());
  if (!directory.ok()) {
    problems.emplace_back(directory.status().message());
    return;
  }
  options.model = directory->config;
  const absl::Status mesh = CheckMesh(options.model, options.config.mesh());
  if (!mesh.ok()) problems.emplace_back(mesh.message());
  if (mesh.ok() && FindRunDtype(options.config.dtype())) {  // another one is reported already
    const absl::Status memory = CheckMemory(options.model, options.config);
    if (!memory.ok()) problems.emplace_back(memory.message());
  }
  options.config.set_model(std::filesystem::absolute(options.config.model()).string());
}

// Last, when nothing else is wrong: a start that is refused leaves no directory behind.
void PrepareData(const Flags& flags, ServerMainOptions& options, std::vector<std::string>& problems) {
  if (flags.check_config || !problems.empty()) return;
  absl::StatusOr<DataDirectory> data = DataDirectory::Open(flags.data);
  if (data.ok()) {
    options.data.emplace(*std::move(data));
  } else {
    problems.push_back(absl::StrCat("--data ", flags.data, ": ", data.status().message()));
  }
}

// A worker that is silent is told apart from one that stands still.
void CheckTimes(const Flags& flags, std::vector<std::string>& problems) {
  if (flags.worker_stalled_after_s > flags.worker_lost_after_s) return;
  problems.push_back(absl::StrCat("--worker-stalled-after is ", flags.worker_stalled_after_s,
                                  ", not more than --worker-lost-after, which is ", flags.worker_lost_after_s,
                                  ": raise it"));
}

void CheckFiles(const Flags& flags, std::vector<std::string>& problems) {
  if (flags.data.empty()) problems.push_back("--data is empty: name a directory");
  if (flags.ready_file.empty() || flags.check_config) return;
  if (const absl::Status status = ReadyFile::Clear(flags.ready_file); !status.ok()) {
    problems.push_back(absl::StrCat("--ready-file: ", status.message()));
  }
}

}  // namespace

bool ReadServerOptions(int argc, char** argv, ServerMainOptions& options, int& exit_code) {
  CLI::App app("The coordinator of Stemma: serves clients, plans, and drives its workers.", "stemma-server");
  SetHelpStyle(app);
  Flags flags;
  AddFlags(app, flags);
  AddLogOptions(&app, options.log);
  if (const std::optional<int> parsed = ParseOptions(app, argc, argv)) {
    exit_code = *parsed;
    return false;
  }
  StartLogging(kServerProgram, options.log);
  std::vector<std::string> problems;
  options.config = ReadConfig(flags, problems);
  OpenModel(options, problems);
  ReadListeners(flags, options, problems);
  options.worker_secret = ReadSecret(flags, problems);
  options.reflection = flags.reflection;
  CheckTimes(flags, problems);
  CheckFiles(flags, problems);
  PrepareData(flags, options, problems);
  options.ready_file = flags.ready_file;
  options.resume = flags.resume;
  options.drain_within = absl::Seconds(flags.drain_timeout_s);
  options.worker_lost_after = absl::Seconds(flags.worker_lost_after_s);
  options.worker_stalled_after = absl::Seconds(flags.worker_stalled_after_s);
  options.check_config = flags.check_config;
  options.die_with_parent = flags.die_with_parent;
  for (const std::string& problem : problems) Say(kServerProgram, options.log, LogLevel::kError, problem);
  exit_code = problems.empty() ? 0 : 2;
  return problems.empty();
}

}  // namespace stemma::server
