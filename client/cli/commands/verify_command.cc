// stemma verify TRACE: how far a step with shared prompts is from the dense one, on the server's weights, mesh and
// dtype.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/calls/submit.h"
#include "client/cli/commands/command.h"
#include "client/cli/trace/trace_file.h"
#include "common/base/command_line_options.h"
#include "common/base/dtype_names.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

using Metrics = google::protobuf::Map<std::string, double>;

// Parameters in the table; JSON has all.
constexpr size_t kParametersShown = 10;

struct VerifyOptions {
  ConnectionOptions server;
  OutputOptions output;
  std::string trace;
  int64_t line = 0;       // of the file, from 1; 0: the first request
  int64_t groups = 0;     // the first so many; 0: those of the first mini-batch
  double tolerance = -1;  // below 0: the dtype's
};

// Half of the digits of the dtype. Rounding leaves errors of some units in the last place, and mistakes change a
// gradient by a percent or more: far above this in fp32, and in bf16 not always (docs/verification.md).
double ToleranceOf(RunDtype dtype) {
  const int mantissa_bits = dtype == RunDtype::kFp64 ? 53 : dtype == RunDtype::kFp32 ? 24 : 8;
  return std::pow(2.0, -mantissa_bits / 2.0);
}

std::map<std::string, double> Sorted(const Metrics& metrics) { return {metrics.begin(), metrics.end()}; }

double Share(double part, double whole) { return whole > 0 ? part / whole : part > 0 ? HUGE_VAL : 0; }

// One step of the line's groups: the first mini-batch, as it is without shuffling, or as many as are asked for.
void KeepOneStep(int64_t asked, TraceRequest& request) {
  v1::UpdateHeader& header = request.header;
  const auto all = static_cast<int64_t>(request.groups.size());
  const int64_t first = asked > 0                          ? asked
                        : header.has_ppo_mini_batch_size() ? static_cast<int64_t>(header.ppo_mini_batch_size())
                                                           : all;
  request.groups.resize(static_cast<size_t>(std::clamp<int64_t>(first, 0, all)));
  header.clear_num_groups();
  header.clear_ppo_mini_batch_size();
  header.clear_ppo_epochs();
  header.clear_shuffle();
  header.clear_seed();
  header.clear_return_log_probs();
  header.clear_trace_step();
  header.mutable_request()->clear_wait_ms();
  header.mutable_request()->clear_on_nonfinite();
  header.mutable_request()->clear_schedule();
  header.mutable_request()->clear_expected_step();
}

Record RunRow(const char* what, const char* metric, const v1::VerifyGroupResponse& answer) {
  const auto value = [&](const Metrics& metrics) {
    const auto found = metrics.find(metric);
    return found == metrics.end() ? Record() : Record(found->second);
  };
  const Record reuse = value(answer.reuse().metrics()), dense = value(answer.dense().metrics());
  Record record;
  record["what"] = what;
  record["shared"] = reuse;
  record["dense"] = dense;
  if (!reuse.is_null() && !dense.is_null() && reuse.get<double>() != 0) {
    record["dense_per_shared"] = dense.get<double>() / reuse.get<double>();
  }
  return record;
}

std::vector<Record> RunRows(const v1::VerifyGroupResponse& answer) {
  return {RunRow("loss", "actor/loss", answer),
          RunRow("gradient norm", "actor/grad_norm", answer),
          RunRow("rows computed", "prefix/tokens_computed", answer),
          RunRow("FLOPs", "perf/actor/flops", answer),
          RunRow("seconds", "perf/actor/time_per_step", answer),
          RunRow("peak bytes", "plan/measured_bytes", answer)};
}

std::vector<Record> ParameterRows(const v1::VerifyGroupResponse& answer, size_t most) {
  std::vector<Record> rows;
  for (const v1::ParameterError& parameter : answer.parameters()) {
    if (rows.size() == most) break;
    Record& row = rows.emplace_back();
    row["parameter"] = parameter.name();
    row["error"] = Share(parameter.error_norm(), parameter.gradient_norm());
    row["error_norm"] = parameter.error_norm();
    row["gradient_norm"] = parameter.gradient_norm();
  }
  return rows;
}

Record Summary(int64_t line, const v1::VerifyGroupResponse& answer, double tolerance) {
  const double error = Share(answer.error_norm(), answer.gradient_norm());
  Record record;
  record["line"] = line;
  record["step"] = answer.step();
  record["lineage"] = answer.lineage();
  record["gradient_error"] = error;
  record["tolerance"] = tolerance;
  record["within_tolerance"] = error <= tolerance;
  record["log_prob_error_max"] = answer.log_prob_error_max();
  record["log_prob_error_mean"] = answer.log_prob_error_mean();
  record["log_prob_tokens"] = answer.log_prob_tokens();
  return record;
}

void PrintVerificationTables(const OutputOptions& output, const Record& summary,
                             const v1::VerifyGroupResponse& answer) {
  WriteFields(output, summary, std::cout);
  std::cout << "\n";
  WriteRecords(
      output,
      {{"what", "", 0, true}, {"shared", "shared prompts"}, {"dense", "dense"}, {"dense_per_shared", "dense / shared"}},
      RunRows(answer), std::cout);
  std::cout << "\n";
  WriteRecords(output,
               {{"parameter", "parameter", 0, true},
                {"error", "error"},
                {"error_norm", "|shared - dense|"},
                {"gradient_norm", "|dense|"}},
               ParameterRows(answer, kParametersShown), std::cout);
}

void PrintVerificationJson(const OutputOptions& output, Record summary, const v1::VerifyGroupResponse& answer) {
  summary["reuse"] = Record(Sorted(answer.reuse().metrics()));
  summary["dense"] = Record(Sorted(answer.dense().metrics()));
  summary["parameters"] = ParameterRows(answer, static_cast<size_t>(answer.parameters_size()));
  WriteFields(output, summary, std::cout);
}

absl::Status RunVerification(const VerifyOptions& options) {
  ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(options.trace));
  ASSIGN_OR_RETURN(const int64_t index, trace.IndexOfLine(options.line));
  ASSIGN_OR_RETURN(TraceLine line, trace.Read(index));
  KeepOneStep(options.groups, line.request);
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  ASSIGN_OR_RETURN(const auto info,
                   connection->Call(&v1::TrainingService::Stub::GetServerInfo, v1::GetServerInfoRequest()));
  line.request.header.mutable_request()->set_request_id(absl::StrCat("verify-", trace.short_digest(), "/", line.line));
  grpc::ClientContext context;
  ASSIGN_OR_RETURN(const auto answer,
                   VerifyGroup(connection->stub(), context, line.request.header, line.request.groups));
  const double tolerance = options.tolerance >= 0 ? options.tolerance : ToleranceOf(RunDtypeOf(info.config().dtype()));
  const Record summary = Summary(line.line, answer, tolerance);
  if (options.output.format == OutputFormat::kJson) {
    PrintVerificationJson(options.output, summary, answer);
  } else {
    PrintVerificationTables(options.output, summary, answer);
  }
  if (summary["within_tolerance"].get<bool>()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the gradients are ", summary["gradient_error"].get<double>(),
                                          " of the dense one apart, more than the tolerance of ", tolerance));
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand(
      "verify", "Compute a step with shared prompts and dense, and show how far apart they are; nothing is applied");
  command->add_option("TRACE", options->trace, "Trace file (.jsonl)")->required()->type_name("FILE");
  command->add_option("--line", options->line, "The request on this line of the file (default: the first)")
      ->check(Whole(1), "")
      ->type_name("N");
  command->add_option("--groups", options->groups, "Only its first N groups (default: one mini-batch)")
      ->check(Whole(1), "")
      ->type_name("N");
  AddNumber(
      command, "--tolerance", options->tolerance,
      "Exit with 1 where the gradients differ by more than this part of the dense one's norm (default: half of the "
      "digits of the run's dtype: 1.1e-8, 2.4e-4, 0.0625 in fp64, fp32, bf16)",
      kFromZero)
      ->type_name("X");
  AddServerOptions(command, &options->server);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma verify trace.jsonl --server 127.0.0.1:7070\n"
              "  stemma verify trace.jsonl --line 12 --groups 1 --server 127.0.0.1:7070\n"
              "  stemma verify trace.jsonl --server 127.0.0.1:7070 -o json | jq .gradient_error");
  command->callback([&run, options] { run = [options] { return RunVerification(*options); }; });
}

}  // namespace stemma::cli
