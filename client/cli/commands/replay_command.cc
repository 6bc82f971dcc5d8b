// stemma replay TRACE: submits a trace line by line, prints every optimizer step, compares with expected values.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/replay_run.h"
#include "client/cli/output/command_status.h"
#include "common/base/command_line_options.h"
#include "common/base/file.h"
#include "common/base/names.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

constexpr uint64_t kExpectedBytesMax = uint64_t{1} << 30;
constexpr uint64_t kRequestsMax = uint64_t{1} << 53;
constexpr uint64_t kRetriesMax = 1'000'000;

absl::StatusOr<std::optional<ExpectedSteps>> ReadExpected(const std::string& path) {
  if (path.empty()) return std::nullopt;
  const auto text = ReadFile(path, kExpectedBytesMax);
  if (!text.ok()) return UsageError(std::string(text.status().message()));
  auto expected = ExpectedSteps::Parse(*text);
  if (!expected.ok()) return UsageError(absl::StrCat(path, ": ", expected.status().message()));
  return std::optional(*std::move(expected));
}

// Before the first step: steps cannot be taken again for the sake of a report.
absl::StatusOr<std::optional<ReportFile>> OpenReport(const std::string& path) {
  if (path.empty()) return std::nullopt;
  auto report = ReportFile::Open(path);
  if (!report.ok()) return UsageError(absl::StrCat("--report: ", report.status().message()));
  return std::optional(*std::move(report));
}

absl::StatusOr<std::optional<StepTraceOut>> OpenTraceOut(const ReplayOptions& options) {
  if (options.trace_out.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(options.trace));
  const int64_t count = trace.num_requests(), begin = options.start - 1;
  const int64_t end = options.limit == 0 ? count : std::min(count, begin + options.limit);
  ASSIGN_OR_RETURN(auto opened,
                   StepTraceOut::Open(options.trace_out, options.trace_step, std::move(trace), begin, end));
  return std::optional(std::move(opened));
}

// Tells whether two paths name one file, which a report would overwrite. A pipe or a terminal may be named twice.
bool AreOneFile(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (a.empty() || b.empty() || (fs::exists(a, error) && !fs::is_regular_file(a, error))) return false;
  const auto whole = [&error](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, error), error);
  };
  return whole(a) == whole(b) || fs::equivalent(a, b, error);
}

// Checks that what is written is no file that is read, or written otherwise.
absl::Status CheckFiles(const ReplayOptions& options) {
  const std::pair<const char*, const std::string&> files[] = {{"TRACE", options.trace},
                                                              {"--verify", options.verify},
                                                              {"--report", options.report},
                                                              {"--trace-out", options.trace_out}};
  for (size_t written = 2; written < std::size(files); ++written) {
    for (size_t other = 0; other < written; ++other) {
      if (!AreOneFile(files[other].second, files[written].second)) continue;
      return UsageError(absl::StrCat(files[written].first, " ", files[written].second, ": is the file of ",
                                     files[other].first, " too, and would overwrite it: name another one"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunReplay(ReplayOptions options) {
  RETURN_IF_ERROR(CheckFiles(options));
  if (const absl::Status valid = options.lr_schedule.Validate(); !valid.ok())
    return UsageError(std::string(valid.message()));
  if (!options.run_id.empty()) {
    if (const absl::Status valid = CheckRequestId(options.run_id); !valid.ok())
      return UsageError(std::string(valid.message()));
  }
  ASSIGN_OR_RETURN(auto expected, ReadExpected(options.verify));
  ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(options.trace));
  RETURN_IF_ERROR(trace.Check(0, trace.num_requests()));
  if (options.start > trace.num_requests()) {
    return UsageError(absl::StrCat("--start ", options.start, ": the trace holds ", trace.num_requests(), " requests"));
  }
  ASSIGN_OR_RETURN(auto report, OpenReport(options.report));
  ASSIGN_OR_RETURN(auto trace_out, OpenTraceOut(options));
  options.progress = StderrIsTerminal();
  ReplayRun replay(std::move(options), std::move(trace), std::move(expected), std::move(report), std::move(trace_out));
  return replay.Run();
}

void AddScheduleOptions(CLI::App* command, ReplayOptions* options) {
  AddWord<LrCurve>(command, "--lr-schedule", options->lr_schedule.curve,
                   {{"constant", LrCurve::kConstant}, {"linear", LrCurve::kLinear}, {"cosine", LrCurve::kCosine}},
                   "Curve of the learning rate")
      ->type_name("constant|linear|cosine")
      ->default_str("constant");
  command->add_option("--warmup-steps", options->lr_schedule.warmup_steps, "Requests of linear warm-up")
      ->check(Whole(0, kRequestsMax), "")
      ->type_name("N");
  command->add_option("--total-steps", options->lr_schedule.total_steps, "Request at which the curve ends")
      ->check(Whole(1, kRequestsMax), "")
      ->type_name("N");
  AddNumber(command, "--min-lr-ratio", options->lr_schedule.min_lr_ratio, "The curve's end, of the line's own rate",
            {.min = 0, .max = 1})
      ->type_name("X");
  AddWord<v1::Schedule>(command, "--schedule", options->schedule,
                        {{"auto", v1::AUTO}, {"reuse", v1::REUSE}, {"dense", v1::DENSE}},
                        "In place of each request's own schedule")
      ->type_name("auto|reuse|dense");
}

}  // namespace

void AddReplayCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* command = app.add_subcommand("replay", "Submit a trace line by line and print every optimizer step");
  command->add_option("TRACE", options->trace, "Trace file (.jsonl)")->required()->type_name("FILE");
  AddServerOptions(command, &options->server);
  AddScheduleOptions(command, options.get());
  command->add_option("--start", options->start, "First request to submit, counted from 1")
      ->check(Whole(1), "")
      ->type_name("N");
  command->add_option("--limit", options->limit, "Submit at most so many")->check(Whole(1), "")->type_name("N");
  command
      ->add_option(
          "--run-id", options->run_id,
          "Ids become ID/LINE (default: from the trace's digest, so that a rerun goes on where the last one ended)")
      ->type_name("ID");
  command->add_option("--retries", options->retries, "Send a request again, with its id, while the server is away")
      ->check(Whole(0, kRetriesMax), "")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--follow-lineage", options->follow_lineage,
                    "Go on with the next request when the weights trained so far are lost");
  command->add_option("--verify", options->verify, "Compare loss and grad_norm with this file's, within its tolerances")
      ->type_name("FILE");
  command->add_option("--report", options->report, "Write everything as one JSON object")->type_name("FILE");
  CLI::Option* trace_out = command->add_option(
      "--trace-out", options->trace_out,
      "Write what each rank did when in one optimizer step, as a trace for ui.perfetto.dev or chrome://tracing");
  trace_out->type_name("FILE");
  command->add_option("--trace-step", options->trace_step, "The step to trace, counted from 1 over those submitted")
      ->check(Whole(1), "")
      ->type_name("N")
      ->capture_default_str()
      ->needs(trace_out);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma replay trace.jsonl --server 127.0.0.1:7070\n"
              "  stemma replay trace.jsonl --server 127.0.0.1:7070 --schedule dense --run-id dense -o json\n"
              "  stemma replay trace.jsonl --server 127.0.0.1:7070 --lr-schedule cosine --warmup-steps 10 \\\n"
              "    --total-steps 200 --verify expected.jsonl --report report.json");
  command->callback([&run, options] { run = [options] { return RunReplay(*options); }; });
}

}  // namespace stemma::cli
