// stemma trace make|check|stat: traces without or before a server.
#include <iostream>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/command_status.h"
#include "client/cli/shared_options.h"
#include "client/cli/trace_check.h"
#include "client/cli/trace_file.h"
#include "client/cli/trace_make.h"
#include "client/cli/trace_stat.h"
#include "common/status_macros.h"

namespace stemma {
namespace {

struct TraceOptions {
  std::string trace;
  OutputOptions output;
};

// Every problem of every line, not only the first.
absl::Status RunCheck(const TraceOptions& options) {
  auto reader = TraceReader::Open(options.trace);
  if (!reader.ok()) return UsageError(std::string(reader.status().message()));
  int64_t requests = 0, groups = 0, problems = 0;
  while (true) {
    const auto line = reader->Next();
    if (!line.ok()) {
      std::cerr << line.status().message() << std::endl;
      ++problems;
      continue;
    }
    if (!line->has_value()) break;
    ++requests;
    groups += static_cast<int64_t>((*line)->request.groups.size());
    for (const std::string& problem : CheckRequest((*line)->request)) {
      std::cerr << options.trace << ": line " << (*line)->line << ": " << problem << std::endl;
      ++problems;
    }
  }
  Record record;
  record["trace"] = options.trace;
  record["sha256"] = reader->digest();
  record["requests"] = requests;
  record["groups"] = groups;
  record["problems"] = problems;
  WriteFields(options.output, record, std::cout);
  if (problems > 0) return UsageError(absl::StrCat(options.trace, ": ", problems, " problems"));
  return requests > 0 ? absl::OkStatus() : UsageError(absl::StrCat(options.trace, ": holds no request"));
}

absl::Status RunStat(const TraceOptions& options) {
  ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(options.trace));
  TraceStat stat;
  for (int64_t index = 0; index < trace.num_requests(); ++index) {
    ASSIGN_OR_RETURN(const TraceLine line, trace.Read(index));
    stat.Add(line.request.groups);
  }
  WriteFields(options.output, stat.ToRecord(), std::cout);
  return absl::OkStatus();
}

void AddShapeOptions(CLI::App* command, TraceMakeOptions* options) {
  SyntheticTraceOptions& synthetic = options->synthetic;
  command->add_option("--seed", synthetic.seed, "The same seed gives the same file")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--steps", synthetic.steps, "Requests")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--groups", synthetic.groups, "Groups of a request")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--n", options->rollouts, "Rollouts of a group: a number or a distribution")
      ->type_name("DIST")
      ->transform([](const std::string& text) { return text.find(':') == std::string::npos ? "fixed:" + text : text; },
                  "")
      ->capture_default_str();
  command->add_option("--prompt-len", options->prompt_tokens, "fixed:L, uniform:LOW:HIGH or lognormal:MEAN:SIGMA:MAX")
      ->type_name("DIST")
      ->capture_default_str();
  command->add_option("--response-len", options->response_tokens, "The same for responses")
      ->type_name("DIST")
      ->capture_default_str();
  command->add_option("--mask-prob", synthetic.mask_probability, "Probability that a response token is masked")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--vocab", synthetic.vocab_size, "Token ids are below this; default: the server's model's")
      ->check(CLI::PositiveNumber)
      ->type_name("V");
}

void AddLossOptions(CLI::App* command, TraceMakeOptions* options) {
  SyntheticTraceOptions& synthetic = options->synthetic;
  command->add_option("--loss-mode", synthetic.loss_mode, "vanilla, gspo, cispo, ...")
      ->type_name("MODE")
      ->capture_default_str();
  command->add_option("--loss-agg-mode", synthetic.loss_agg_mode, "token-mean, seq-mean-token-mean, ...")
      ->type_name("MODE")
      ->capture_default_str();
  command->add_option("--lr", synthetic.learning_rate, "Learning rate")
      ->check(CLI::NonNegativeNumber)
      ->type_name("LR")
      ->capture_default_str();
  command->add_option("--temperature", synthetic.temperature, "Of the logits")
      ->check(CLI::PositiveNumber)
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--kl-coef", synthetic.kl_loss_coef, "A KL term, with ref_log_prob, when above 0")
      ->check(CLI::NonNegativeNumber)
      ->type_name("C")
      ->capture_default_str();
  command->add_option("--entropy-coeff", synthetic.entropy_coeff, "An entropy term, when not 0")
      ->type_name("C")
      ->capture_default_str();
  command->add_option("--old-noise", synthetic.old_noise, "Deviation of old and ref log-probs around the model's")
      ->check(CLI::NonNegativeNumber)
      ->type_name("S")
      ->capture_default_str();
}

void AddMake(CLI::App* trace, Runner& run) {
  auto options = std::make_shared<TraceMakeOptions>();
  CLI::App* command = trace->add_subcommand("make", "Write a synthetic trace from a seed");
  command->add_option("OUT", options->path, "File to write; must not exist")->required()->type_name("FILE");
  AddShapeOptions(command, options.get());
  AddLossOptions(command, options.get());
  command->add_flag("--base64", options->base64, "Arrays as base64 instead of lists of numbers");
  AddServerOptions(command, &options->server, /*required=*/false);
  SetExamples(command,
              "  stemma trace make a.jsonl --seed 7 --steps 20 --vocab 512\n"
              "  stemma trace make b.jsonl --groups 8 --n 16 --prompt-len lognormal:512:0.5:2048 \\\n"
              "    --response-len uniform:16:256 --mask-prob 0.1 --server 127.0.0.1:7070");
  command->callback([&run, options] {
    options->progress = StderrIsTerminal();
    run = [options] { return MakeTrace(*options); };
  });
}

void AddReader(CLI::App* trace, Runner& run, const std::string& name, const std::string& help,
               absl::Status (*function)(const TraceOptions&)) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App* command = trace->add_subcommand(name, help);
  command->add_option("TRACE", options->trace, "Trace file (.jsonl)")->required()->type_name("FILE");
  AddOutputOption(command, &options->output);
  SetExamples(command, absl::StrCat("  stemma trace ", name, " trace.jsonl"));
  command->callback([&run, options, function] { run = [options, function] { return function(*options); }; });
}

}  // namespace

void AddTraceCommand(CLI::App& app, Runner& run) {
  CLI::App* trace = app.add_subcommand("trace", "Make, check or describe a trace");
  trace->require_subcommand(1);
  AddMake(trace, run);
  AddReader(trace, run, "check", "Read every line and report every problem with its line and field", &RunCheck);
  AddReader(trace, run, "stat", "Lengths, prefix share, and the bound on the tokens that reuse saves", &RunStat);
}

}  // namespace stemma
