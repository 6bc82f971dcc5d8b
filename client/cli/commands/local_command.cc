// stemma local: a server and its workers on this machine, in the foreground.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/local/local_run.h"
#include "client/cli/output/command_status.h"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"
#include "common/base/run_config.h"

namespace stemma::cli {
namespace {

// An option that goes to the server as it is, and is checked there: run.yaml and flags are judged as a whole. `kept`:
// where its value stays here too.
void PassToServer(CLI::App* command, LocalOptions* options, const std::string& name, const std::string& type,
                  const std::string& help, std::string* kept = nullptr) {
  command
      ->add_option_function<std::string>(
          name,
          [options, name, kept](const std::string& value) {
            options->server_flags.push_back(name);
            options->server_flags.push_back(value);
            if (kept != nullptr) *kept = value;
          },
          help)
      ->type_name(type);
}

void PassFlagToServer(CLI::App* command, LocalOptions* options, const std::string& name, const std::string& help) {
  command->add_flag_callback(
      name, [options, name] { options->server_flags.push_back(name); }, help);
}

// An option of the log: of this process, of the server and of the workers.
template <typename Value>
struct LogOption {
  std::string name, type;
  std::map<std::string, Value> words;
  Value* value;  // of this process
  std::string help;
};

template <typename Value>
void PassLogOption(CLI::App* command, LocalOptions* options, const LogOption<Value>& option) {
  std::vector<std::string> known;
  for (const auto& [word, meaning] : option.words) known.push_back(word);
  command
      ->add_option_function<std::string>(
          option.name,
          [options, option](const std::string& word) {
            *option.value = option.words.at(word);
            for (auto* flags : {&options->log_flags, &options->worker_flags}) {
              flags->push_back(option.name);
              flags->push_back(word);
            }
          },
          option.help)
      ->check(OneOf(known), "")
      ->type_name(option.type);
}

void PassLogOptions(CLI::App* command, LocalOptions* options) {
  PassLogOption<LogFormat>(command, options,
                           {.name = "--log-format",
                            .type = "text|json",
                            .words = LogFormats(),
                            .value = &options->log.format,
                            .help = "How log lines look; json: an object a line"});
  PassLogOption<LogLevel>(command, options,
                          {.name = "--log-level",
                           .type = "debug|info|warning|error",
                           .words = LogLevels(),
                           .value = &options->log.level,
                           .help = "The least that is logged (default: info)"});
}

// What says how many workers there are. Empty, or 0: not given.
struct GangOptions {
  std::string mesh, config_file;
  uint32_t workers = 0;
};

// Returns run.yaml's. What cannot be read is one rank: the server, which is told the same, refuses it with all other
// problems before a worker starts.
v1::Mesh MeshOfFile(const GangOptions& gang) {
  if (gang.config_file.empty()) return {};
  const absl::StatusOr<ParsedRunConfig> parsed = ReadRunConfig(gang.config_file);
  return parsed.ok() && NumRanks(parsed->config.mesh()) <= kRanksMax ? parsed->config.mesh() : v1::Mesh{};
}

// Returns as many as the mesh has ranks: the options', else run.yaml's.
uint32_t MeshRanks(const GangOptions& gang) {
  if (!gang.mesh.empty()) {
    const absl::StatusOr<v1::Mesh> mesh = ParseMesh(gang.mesh);
    return mesh.ok() ? NumRanks(*mesh) : 1;
  }
  if (gang.workers > 0) return gang.workers;
  return NumRanks(MeshOfFile(gang));
}

absl::Status RunLocal(LocalOptions options, const GangOptions& gang) {
  if (options.server_flags.empty()) return UsageError("say what to run: --model DIR, or --config FILE that names one");
  options.num_workers = MeshRanks(gang);
  if (!gang.mesh.empty() && gang.workers > 0 && gang.workers != options.num_workers && ParseMesh(gang.mesh).ok()) {
    return UsageError(absl::StrCat("--workers ", gang.workers, " and --mesh ", gang.mesh, " differ: the mesh has ",
                                   options.num_workers, " ranks, and each is a worker; give one of the two"));
  }
  const v1::Mesh of_file = MeshOfFile(gang);
  const bool is_divided = RanksOfCopy(of_file) > 1;  // which --workers, that makes copies, would undo
  if (gang.mesh.empty() && gang.workers > 0 && is_divided && gang.workers != NumRanks(of_file)) {
    return UsageError(absl::StrCat("--workers ", gang.workers, " and the mesh ", MeshText(of_file), " of ",
                                   gang.config_file, " differ: leave --workers out, or give a --mesh"));
  }
  if (gang.mesh.empty() && gang.workers > 0 && !is_divided) {
    options.server_flags.insert(options.server_flags.end(), {"--mesh", absl::StrCat("dp=", gang.workers)});
  }
  LocalRun run(std::move(options));
  return run.Run();
}

// What bounds or decides the memory of a step.
void AddMemoryOptions(CLI::App* command, LocalOptions* options) {
  PassToServer(command, options, "--memory-budget", "BYTES", "Device memory for state and activations, e.g. 20GB");
  PassToServer(command, options, "--wave-suffixes", "N", "Force so many suffixes per wave");
  PassToServer(command, options, "--layout", "one_by_one|padded|packed", "Force how a wave is laid out");
  PassToServer(command, options, "--prefix-policy", "s0|s1|s2|s3|s4|s5",
               "Force what a prefix's tape keeps: s0 all, s5 only K and V");
  PassToServer(command, options, "--suffix-policy", "s0|s1|s2|s3|s4", "Force what a suffix's tape keeps");
  PassToServer(command, options, "--prefix-block-rows", "N", "Force prefixes in blocks of so many rows");
  PassToServer(command, options, "--offload", "on|off", "Force the prefixes' tape into host memory, or not");
  PassToServer(command, options, "--host-memory", "BYTES", "Host memory for what is moved off the device");
  PassToServer(command, options, "--optimizer-residency", "device|host", "Force where optimizer states live");
}

}  // namespace

void AddLocalCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<LocalOptions>();
  auto gang = std::make_shared<GangOptions>();
  CLI::App* command = app.add_subcommand(
      "local", "Run a server and its workers on this machine, in the foreground; prints the address once it serves");
  PassToServer(command, options.get(), "--model", "DIR", "Hugging Face directory: config.json and safetensors");
  PassToServer(command, options.get(), "--config", "FILE", "run.yaml; options given here override it",
               &gang->config_file);
  PassToServer(command, options.get(), "--dtype", "fp32|fp64|bf16", "What to compute in");
  PassToServer(command, options.get(), "--schedule", "auto|reuse|dense", "Prefix reuse, or every trajectory in full");
  command
      ->add_option("--workers", gang->workers,
                   "So many workers, each a rank of data parallelism (default: by the mesh)")
      ->check(Whole(1, kRanksMax), "")
      ->type_name("N");
  command
      ->add_option("--device", options->device_kind,
                   "What each worker computes on: this machine's CPUs, or a GPU each (default: cpu)")
      ->check(OneOf({"cpu", "cuda"}), "")
      ->type_name("cpu|cuda");
  PassToServer(
      command, options.get(), "--mesh", "MESH",
      "How many ranks each axis has, as dp=N,pp=S,cp=M,tp=K; each rank is a worker; ep=E deals experts to the tp ranks",
      &gang->mesh);
  PassToServer(command, options.get(), "--split-groups", "auto|on|off", "Let several ranks share one group's rollouts");
  PassToServer(command, options.get(), "--shard-parameters", "auto|on|off",
               "Divide parameters and gradients over ranks too, and gather each layer when it runs");
  PassToServer(command, options.get(), "--reduce-gradients", "auto|sweep|step",
               "When divided gradients go to their owners: in each backward sweep, or once per step");
  PassToServer(command, options.get(), "--prefix-kv", "auto|hold|regather",
               "How context-parallel ranks keep a prefix's K/V");
  PassToServer(command, options.get(), "--durability", "replay|rewind",
               "What a loss leaves of the steps: all, computed again from --data, or a checkpoint's");
  PassToServer(command, options.get(), "--listen", "HOST:PORT", "Where to serve; port 0 takes a free one");
  PassToServer(command, options.get(), "--ops-listen", "HOST:PORT", "Where to answer health checks");
  PassToServer(command, options.get(), "--metrics-listen", "HOST:PORT",
               "Where Prometheus reads /metrics, over HTTP (default: nowhere)");
  PassToServer(command, options.get(), "--data", "DIR", "Where the journal, kept requests, checkpoints and exports go");
  PassToServer(command, options.get(), "--resume", "NAME",
               "Begin a new --data with this checkpoint, or none (default: auto, the newest)");
  AddMemoryOptions(command, options.get());
  PassToServer(command, options.get(), "--worker-lost-after", "SECONDS",
               "Silence after which the worker is replaced (default: 10)");
  PassToServer(command, options.get(), "--worker-stalled-after", "SECONDS",
               "Standstill of a job after which it is replaced (default: 300)");
  PassToServer(command, options.get(), "--threads", "N", "Threads of each worker; 0: all cores, divided evenly");
  command
      ->add_option_function<uint32_t>(
          "--drain-timeout",
          [options](const uint32_t& seconds) {
            options->drain_within = absl::Seconds(seconds);
            options->server_flags.insert(options->server_flags.end(), {"--drain-timeout", absl::StrCat(seconds)});
          },
          "When told to stop, time for what runs to end its step (default: 20)")
      ->check(Whole(0, 24 * 3600), "")
      ->type_name("SECONDS");
  PassLogOptions(command, options.get());
  command->add_option("--ready-file", options->ready_file, "Write the address there, one line, once it serves")
      ->type_name("FILE");
  command->add_flag("--die-with-parent", options->die_with_parent, "Stop when the process that started this one ends");
  PassFlagToServer(command, options.get(), "--insecure", "Allow --listen beyond loopback, in plain text");
  PassFlagToServer(command, options.get(), "--reflection", "Let clients ask what calls there are, as grpcurl does");
  SetExamples(command,
              "  stemma local --model tiny --dtype fp32 --listen 127.0.0.1:7070\n"
              "  stemma local --config run.yaml --schedule dense --data out\n"
              "  stemma local --model tiny --workers 2\n"
              "  stemma local --model tiny --ready-file address &   # then: --server $(cat address)");
  command->callback([&run, options, gang] { run = [options, gang] { return RunLocal(*options, *gang); }; });
}

}  // namespace stemma::cli
