// stemma local: a server and a worker on this machine, in the foreground.
#include <map>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/local/local_run.h"
#include "client/cli/output/command_status.h"

namespace stemma::cli {
namespace {

// An option that goes to the server as it is, and is checked there: run.yaml and flags are judged as a whole.
void PassOption(CLI::App* command, LocalOptions* options, const std::string& name, const std::string& type,
                const std::string& help) {
  command
      ->add_option_function<std::string>(
          name,
          [options, name](const std::string& value) {
            options->server_flags.push_back(name);
            options->server_flags.push_back(value);
          },
          help)
      ->type_name(type);
}

// An option of the log: of this process, of the server and of the worker.
template <typename Value>
void PassLogOption(CLI::App* command, LocalOptions* options, const std::string& name, const std::string& type,
                   const std::map<std::string, Value>& words, Value* value, const std::string& help) {
  command
      ->add_option_function<std::string>(
          name,
          [options, name, words, value](const std::string& word) {
            *value = words.at(word);
            for (auto* flags : {&options->log_flags, &options->worker_flags}) {
              flags->push_back(name);
              flags->push_back(word);
            }
          },
          help)
      ->check(CLI::IsMember(words).description(""))
      ->type_name(type);
}

absl::Status RunLocal(const LocalOptions& options) {
  if (options.server_flags.empty()) return UsageError("say what to run: --model DIR, or --config FILE that names one");
  LocalRun run(options);
  return run.Run();
}

}  // namespace

void AddLocalCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<LocalOptions>();
  CLI::App* command = app.add_subcommand(
      "local", "Run a server and a worker on this machine, in the foreground; prints the address once it serves");
  PassOption(command, options.get(), "--model", "DIR", "Hugging Face directory: config.json and safetensors");
  PassOption(command, options.get(), "--config", "FILE", "run.yaml; options given here override it");
  PassOption(command, options.get(), "--dtype", "fp32|fp64|bf16", "What to compute in");
  PassOption(command, options.get(), "--schedule", "auto|reuse|dense", "Prefix reuse, or every trajectory in full");
  PassOption(command, options.get(), "--listen", "HOST:PORT", "Where to serve; port 0 takes a free one");
  PassOption(command, options.get(), "--ops-listen", "HOST:PORT", "Where to answer health checks");
  PassOption(command, options.get(), "--data", "DIR", "Where exports go");
  PassOption(command, options.get(), "--memory-budget", "BYTES", "Device memory for state and activations, e.g. 20GB");
  PassOption(command, options.get(), "--wave-suffixes", "N", "Force so many suffixes per wave");
  PassOption(command, options.get(), "--layout", "one_by_one|padded|packed", "Force how a wave is laid out");
  PassOption(command, options.get(), "--prefix-policy", "s0|s1|s2|s3|s4|s5",
             "Force what a prefix's tape keeps: s0 all, s5 nothing");
  PassOption(command, options.get(), "--suffix-policy", "s0|s1|s2|s3|s4", "Force what a suffix's tape keeps");
  PassOption(command, options.get(), "--prefix-block-rows", "N", "Force prefixes in blocks of so many rows");
  PassOption(command, options.get(), "--offload", "on|off", "Force the prefixes' tape into host memory, or not");
  PassOption(command, options.get(), "--host-memory", "BYTES", "Host memory for what is moved off the device");
  PassOption(command, options.get(), "--optimizer-residency", "device|host", "Force where optimizer states live");
  PassOption(command, options.get(), "--worker-lost-after", "SECONDS",
             "Silence after which the worker is replaced (default: 15)");
  PassOption(command, options.get(), "--worker-stalled-after", "SECONDS",
             "Standstill of a job after which it is replaced (default: 300)");
  PassOption(command, options.get(), "--threads", "N", "Threads that compute; 0: all cores");
  command
      ->add_option_function<uint32_t>(
          "--drain-timeout",
          [options](const uint32_t& seconds) {
            options->drain_within = absl::Seconds(seconds);
            options->server_flags.insert(options->server_flags.end(), {"--drain-timeout", absl::StrCat(seconds)});
          },
          "When told to stop, time for what runs to end its step (default: 20)")
      ->check(CLI::Range(24u * 3600).description(""))
      ->type_name("SECONDS");
  PassLogOption(command, options.get(), "--log-format", "text|json", LogFormats(), &options->log.format,
                "How log lines look; json: an object a line");
  PassLogOption(command, options.get(), "--log-level", "debug|info|warning|error", LogLevels(), &options->log.level,
                "The least that is logged (default: info)");
  command->add_option("--ready-file", options->ready_file, "Write the address there, one line, once it serves")
      ->type_name("FILE");
  command->add_flag_callback(
      "--insecure", [options] { options->server_flags.push_back("--insecure"); },
      "Allow --listen beyond loopback, in plain text");
  SetExamples(command,
              "  stemma local --model tiny --dtype fp32 --listen 127.0.0.1:7070\n"
              "  stemma local --config run.yaml --schedule dense --data out\n"
              "  stemma local --model tiny --ready-file address &   # then: --server $(cat address)");
  command->callback([&run, options] { run = [options] { return RunLocal(*options); }; });
}

}  // namespace stemma::cli
