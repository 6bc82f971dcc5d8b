// stemma trace make|check|stat: traces without or before a server.
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/output/command_status.h"
#include "client/cli/trace/trace_check.h"
#include "client/cli/trace/trace_file.h"
#include "client/cli/trace/trace_make.h"
#include "client/cli/trace/trace_stat.h"
#include "common/base/command_line_options.h"
#include "common/base/option_checks.h"
#include "common/base/run_config.h"
#include "common/base/status_macros.h"
#include "common/model/model_directory.h"

namespace stemma::cli {
namespace {

struct TraceOptions {
  std::string trace;
  OutputOptions output;
};

struct CheckOptions {
  TraceOptions shared;
  std::string model;   // empty: the configuration's, or any
  std::string config;  // empty: the limits of a server without one
};

absl::StatusOr<TraceRules> ReadRules(const CheckOptions& options) {
  TraceRules rules = DefaultTraceRules();
  std::string model = options.model;
  if (!options.config.empty()) {
    auto parsed = ReadRunConfig(options.config);
    if (!parsed.ok()) return UsageError(std::string(parsed.status().message()));
    if (model.empty()) model = parsed->config.model();
    parsed->config.set_model(model.empty() ? "(any)" : model);
    FillDefaults(parsed->config);
    Validate(*parsed);
    if (const absl::Status valid = ToStatus(options.config, *parsed); !valid.ok()) {
      return UsageError(std::string(valid.message()));
    }
    rules.limits = parsed->config.limits();
    rules.numbers = NumbersOfRun(RunDtypeOf(parsed->config.dtype()));
  }
  if (model.empty()) return rules;
  const auto directory = OpenModelDirectory(model);
  if (!directory.ok()) return UsageError(std::string(directory.status().message()));
  rules.model = directory->config;
  return rules;
}

// Prints the problems of one trace to stderr, as they come.
class CheckRun {
 public:
  CheckRun(const CheckOptions& options, TraceRules rules) : options_(options), rules_(std::move(rules)) {}

  absl::Status Run() {
    auto reader = TraceReader::Open(options_.shared.trace);
    if (!reader.ok()) return UsageError(std::string(reader.status().message()));
    while (true) {
      auto line = reader->Next();
      if (!line.ok()) {
        std::cerr << line.status().message() << std::endl;  // names file and line itself
        ++problems_;
        continue;
      }
      if (!line->has_value()) break;
      Check(**std::move(line));
    }
    return Finish(reader->digest());
  }

 private:
  void Check(TraceLine line) {
    ++requests_;
    groups_ += line.request.groups.size();
    const std::string id = line.request.header.request().request_id();
    TraceProblems problems = CheckRequest(std::move(line.request), rules_);
    const auto [first, added] = line_of_id_.emplace(id, line.line);
    if (!added) {
      ++problems.count;
      problems.texts.push_back(absl::StrCat("header.request.request_id: \"", id, "\" is line ", first->second,
                                            "'s too: a server takes it once"));
    }
    for (const std::string& problem : problems.texts) {
      std::cerr << options_.shared.trace << ": line " << line.line << ": " << problem << std::endl;
    }
    if (const uint64_t rest = problems.count - problems.texts.size(); rest > 0) {
      std::cerr << options_.shared.trace << ": line " << line.line << ": and " << rest << " more" << std::endl;
    }
    problems_ += problems.count;
  }

  absl::Status Finish(const std::string& digest) const {
    Record record;
    record["trace"] = options_.shared.trace;
    record["sha256"] = digest;
    record["requests"] = requests_;
    record["groups"] = groups_;
    record["problems"] = problems_;
    WriteFields(options_.shared.output, record, std::cout);
    const std::string& trace = options_.shared.trace;
    if (problems_ > 0) {
      return UsageError(absl::StrCat(trace, ": ", problems_, problems_ == 1 ? " problem" : " problems"));
    }
    return requests_ > 0 ? absl::OkStatus() : UsageError(absl::StrCat(trace, ": holds no request"));
  }

  const CheckOptions& options_;
  const TraceRules rules_;
  uint64_t requests_ = 0, groups_ = 0, problems_ = 0;
  std::map<std::string, int64_t> line_of_id_;
};

absl::Status RunCheck(const CheckOptions& options) {
  ASSIGN_OR_RETURN(TraceRules rules, ReadRules(options));
  return CheckRun(options, std::move(rules)).Run();
}

absl::Status RunStat(const TraceOptions& options) {
  ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(options.trace));
  TraceStat stat;
  for (int64_t index = 0; index < trace.num_requests(); ++index) {
    ASSIGN_OR_RETURN(const TraceLine line, trace.Read(index));
    if (const absl::Status added = stat.Add(line.request.groups); !added.ok()) {
      return UsageError(absl::StrCat(options.trace, ": line ", line.line, ": ", added.message(),
                                     "; `stemma trace check ", options.trace, "` lists every problem"));
    }
  }
  WriteFields(options.output, stat.ToRecord(), std::cout);
  return absl::OkStatus();
}

void AddShapeOptions(CLI::App* command, TraceMakeOptions* options) {
  SyntheticTraceOptions& synthetic = options->synthetic;
  command->add_option("--seed", synthetic.seed, "The same seed gives the same file")
      ->check(Whole(0, UINT64_MAX), "")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--steps", synthetic.steps, "Requests")
      ->check(Whole(1), "")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--groups", synthetic.groups, "Groups of a request")
      ->check(Whole(1), "")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--n", options->rollouts, "Rollouts of a group: N, or lengths as below")
      ->type_name("LENGTHS")
      ->transform([](const std::string& text) { return text.find(':') == std::string::npos ? "fixed:" + text : text; },
                  "")
      ->capture_default_str();
  command->add_option("--prompt-len", options->prompt_tokens, "fixed:N, uniform:LOW:HIGH or lognormal:MEAN:SIGMA:MAX")
      ->type_name("LENGTHS")
      ->capture_default_str();
  command->add_option("--response-len", options->response_tokens, "The same for responses")
      ->type_name("LENGTHS")
      ->capture_default_str();
  AddNumber(command, "--mask-prob", synthetic.mask_probability, "Probability that a response token is masked",
            {.min = 0, .max = 1})
      ->type_name("X")
      ->capture_default_str();
  command
      ->add_option("--vocab", synthetic.vocab_size,
                   "Token ids are below this (default: the vocabulary of the server's model)")
      ->check(Whole(1, uint64_t{1} << 31), "")
      ->type_name("N");
}

void AddLossOptions(CLI::App* command, TraceMakeOptions* options) {
  SyntheticTraceOptions& synthetic = options->synthetic;
  command->add_option("--loss-mode", synthetic.loss_mode, "vanilla, gspo, cispo, ...")
      ->type_name("MODE")
      ->capture_default_str();
  command->add_option("--loss-agg-mode", synthetic.loss_agg_mode, "token-mean, seq-mean-token-mean, ...")
      ->type_name("MODE")
      ->capture_default_str();
  AddNumber(command, "--lr", synthetic.learning_rate, "Learning rate", kFromZero)
      ->type_name("X")
      ->capture_default_str();
  AddNumber(command, "--temperature", synthetic.temperature, "Temperature of the logits", kAboveZero)
      ->type_name("X")
      ->capture_default_str();
  AddNumber(command, "--kl-coef", synthetic.kl_loss_coef, "A KL term, with ref_log_prob, when above 0", kFromZero)
      ->type_name("X")
      ->capture_default_str();
  AddNumber(command, "--entropy-coeff", synthetic.entropy_coeff, "An entropy term, when not 0")
      ->type_name("X")
      ->capture_default_str();
  AddNumber(command, "--old-noise", synthetic.old_noise, "Deviation of old and ref log-probs around the model's",
            kFromZero)
      ->type_name("X")
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

void AddCheck(CLI::App* trace, Runner& run) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = trace->add_subcommand(
      "check", "Check every line by the rules of the server and report every problem with its line and field");
  command->add_option("TRACE", options->shared.trace, "Trace file (.jsonl)")->required()->type_name("FILE");
  command->add_option("--model", options->model, "Check tokens and lengths against this Hugging Face directory too")
      ->type_name("DIR");
  command->add_option("--config", options->config, "run.yaml whose limits and model count")->type_name("FILE");
  AddOutputOption(command, &options->shared.output);
  SetExamples(command, "  stemma trace check trace.jsonl\n  stemma trace check trace.jsonl --model tiny");
  command->callback([&run, options] { run = [options] { return RunCheck(*options); }; });
}

void AddStat(CLI::App* trace, Runner& run) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App* command =
      trace->add_subcommand("stat", "Lengths, prefix share, and the bound on the tokens that reuse saves");
  command->add_option("TRACE", options->trace, "Trace file (.jsonl)")->required()->type_name("FILE");
  AddOutputOption(command, &options->output);
  SetExamples(command, "  stemma trace stat trace.jsonl");
  command->callback([&run, options] { run = [options] { return RunStat(*options); }; });
}

}  // namespace

void AddTraceCommand(CLI::App& app, Runner& run) {
  CLI::App* trace = app.add_subcommand("trace", "Make, check or describe a trace");
  trace->require_subcommand(1);
  AddMake(trace, run);
  AddCheck(trace, run);
  AddStat(trace, run);
}

}  // namespace stemma::cli
