// stemma logprob TRACE: log-probs of the trace's responses under the server's current weights, or a checkpoint's.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/interrupt.h"
#include "client/cli/calls/log_probs.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/output/progress.h"
#include "client/cli/trace/trace_file.h"
#include "common/base/arrays.h"
#include "common/base/command_line_options.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

struct LogprobOptions {
  ConnectionOptions server;
  OutputOptions output;
  std::string trace;
  std::string weights = "policy";
  int64_t line = 0;        // 0: every request
  double temperature = 0;  // 0: the line's own
  bool entropy = false;
};

MaskView MaskOf(const v1::Rollout& rollout, const std::vector<double>& log_probs) {
  return MaskView(rollout.response_mask(), static_cast<int64_t>(log_probs.size()));
}

// Returns the mean of unmasked tokens; null where there are none.
Record Mean(const v1::Rollout& rollout, const std::vector<double>& log_probs) {
  const MaskView mask = MaskOf(rollout, log_probs);
  double sum = 0;
  for (int64_t i = 0; i < mask.size(); ++i) sum += mask[i] ? log_probs[i] : 0;
  return mask.CountOnes() > 0 ? Record(sum / static_cast<double>(mask.CountOnes())) : Record();
}

// Returns the largest distance to the log-probs that the trace holds for unmasked tokens, as what masked places hold is
// never read; null where it holds none.
Record DistanceToOld(const v1::Rollout& rollout, const std::vector<double>& log_probs) {
  const FloatArray old(rollout.old_log_probs().empty() ? rollout.rollout_log_probs() : rollout.old_log_probs());
  if (old.empty() || old.size() != static_cast<int64_t>(log_probs.size())) return Record();
  const MaskView mask = MaskOf(rollout, log_probs);
  double distance = 0;
  for (int64_t i = 0; i < old.size(); ++i) {
    const double own = mask[i] ? std::abs(log_probs[i] - old[i]) : 0;
    if (!std::isnan(distance) && !(own <= distance)) distance = own;  // one that is not a number stays
  }
  return distance;
}

Record RolloutRecord(int64_t line, const std::string& uid, const v1::Rollout& rollout, const RolloutLogProbs& result,
                     bool entropy) {
  Record record;
  record["line"] = line;
  record["uid"] = uid;
  record["rollout_id"] = rollout.rollout_id();
  record["tokens"] = result.log_probs.size();
  record["mean_log_prob"] = Mean(rollout, result.log_probs);
  record["max_distance_to_old"] = DistanceToOld(rollout, result.log_probs);
  record["log_probs"] = result.log_probs;
  if (entropy) record["entropy"] = result.entropy;
  return record;
}

std::vector<Column> Columns() {
  return {{"line", "line", 5},     {"uid", "group", 10, true},    {"rollout_id", "rollout", 12, true},
          {"tokens", "tokens", 7}, {"mean_log_prob", "mean", 10}, {"max_distance_to_old", "max|new-old|", 12}};
}

absl::Status PrintRequest(Connection& connection, const LogprobOptions& options, const std::string& id,
                          const TraceLine& line, RecordWriter& writer) {
  const double temperature = options.temperature > 0 ? options.temperature : line.request.header.loss().temperature();
  ASSIGN_OR_RETURN(auto results,
                   QueryLogProbs(connection, {id, options.weights, temperature, options.entropy}, line.request.groups));
  for (const v1::PromptGroup& group : line.request.groups) {
    for (const v1::Rollout& rollout : group.rollouts()) {
      writer.Write(RolloutRecord(line.line, group.uid(), rollout, results[rollout.rollout_id()], options.entropy));
    }
  }
  return absl::OkStatus();
}

absl::Status RunLogprob(const LogprobOptions& options) {
  ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(options.trace));
  ASSIGN_OR_RETURN(const int64_t begin, trace.IndexOfLine(options.line));
  const int64_t end = options.line != 0 ? begin + 1 : trace.num_requests();
  RETURN_IF_ERROR(trace.Check(begin, end));
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  CatchInterrupts();
  RecordWriter writer(options.output, Columns(), std::cout);
  Progress progress(trace.num_requests(), StderrIsTerminal() && options.line == 0);
  for (int64_t index = begin; index < end; ++index) {
    if (Interrupted()) return PartialError(absl::StrCat("interrupted after ", index - begin, " requests"));
    progress.Show(index, absl::StrCat("line ", trace.LineOf(index)));
    ASSIGN_OR_RETURN(const TraceLine line, trace.Read(index));
    progress.Clear();
    const std::string id = absl::StrCat("logprob-", trace.short_digest(), "/", line.line);
    RETURN_IF_ERROR(PrintRequest(*connection, options, id, line, writer));
  }
  return absl::OkStatus();
}

}  // namespace

void AddLogprobCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<LogprobOptions>();
  CLI::App* command =
      app.add_subcommand("logprob", "Compute log-probs of a trace's responses under the server's weights");
  command->add_option("TRACE", options->trace, "Trace file (.jsonl)")->required()->type_name("FILE");
  command->add_option("--line", options->line, "Only the request on this line of the file")
      ->check(Whole(1), "")
      ->type_name("N");
  command->add_option("--weights", options->weights, "policy, the current ones, or the name of a checkpoint")
      ->type_name("NAME")
      ->capture_default_str();
  AddNumber(command, "--temperature", options->temperature,
            "Temperature of the logits (default: each line's loss.temperature)", kAboveZero)
      ->type_name("X");
  command->add_flag("--entropy", options->entropy, "Entropy of each token too (with -o json)");
  AddServerOptions(command, &options->server);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma logprob trace.jsonl --server 127.0.0.1:7070\n"
              "  stemma logprob trace.jsonl --line 2 --entropy --server 127.0.0.1:7070 -o json\n"
              "  stemma logprob trace.jsonl --weights step-00000100 --server 127.0.0.1:7070");
  command->callback([&run, options] { run = [options] { return RunLogprob(*options); }; });
}

}  // namespace stemma::cli
