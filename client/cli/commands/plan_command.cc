// stemma plan TRACE: what the server would do with a request, without doing it.
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/calls/submit.h"
#include "client/cli/commands/command.h"
#include "client/cli/output/plan_text.h"
#include "client/cli/output/request_records.h"
#include "client/cli/output/stage_text.h"
#include "client/cli/trace/trace_file.h"
#include "common/base/command_line_options.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

struct PlanOptions {
  ConnectionOptions server;
  OutputOptions output;
  std::string trace;
  int64_t line = 0;  // of the file, from 1; 0: the first request
  bool verbose = false;
};

// Returns what the server's workers compute on, "NVIDIA H200" or "cpu": the rates of a plan are of it. Null: nobody
// says.
Record DeviceOf(const v1::ServerInfo& info) {
  if (info.ranks().empty()) return {};
  const v1::RankInfo& rank = info.ranks(0);
  return rank.device_name().empty() ? rank.device().substr(0, rank.device().find(':')) : rank.device_name();
}

// Writes a table below what is there; nothing where it has no rows.
void WriteSection(const OutputOptions& output, std::vector<Column> columns, const std::vector<Record>& records) {
  if (records.empty()) return;
  std::cout << "\n";
  WriteRecords(output, std::move(columns), records, std::cout);
}

// Returns what is said of the whole plan, without its clusters, groups and ranks.
Record PlanHead(int64_t line, const v1::ServerInfo& info, const v1::PlanReport& plan) {
  Record record;
  record["line"] = line;
  record["device"] = DeviceOf(info);
  record.update(PlanRecord(plan));
  return record;
}

void PrintJson(const OutputOptions& output, Record record, const v1::PlanReport& plan) {
  std::vector<Record> clusters = ClusterRecords(plan);
  for (Record& cluster : clusters) {
    for (const char* column : {"waves", "prefix", "bytes_abc", "seconds_abc"}) cluster.erase(column);
  }
  record["cluster_reports"] = clusters;
  record["group_costs"] = GroupRecords(plan);
  record["rank_reports"] = RankReportRecords(plan);
  record["split_groups"] = SplitRecords(plan);
  record["stages"] = StageRecords(plan);
  WriteFields(output, record, std::cout);
}

void PrintTables(const PlanOptions& options, const Record& head, const v1::PlanReport& plan) {
  const OutputOptions& output = options.output;
  Record summary;
  summary["line"] = head["line"];
  summary.update(PlanSummary(plan));
  WriteFields(output, summary, std::cout);
  std::cout << "\n";
  const std::vector<Record> clusters = ClusterRecords(plan);
  if (clusters.empty()) std::cout << "nothing to compute: no rollout has a loss\n";
  WriteRecords(output, ClusterSummaryColumns(), ClusterSummaries(plan), std::cout);
  WriteSection(output, RankSummaryColumns(plan), RankSummaries(plan));
  WriteSection(output, StageSummaryColumns(), StageSummaries(plan));
  WriteSection(output, SplitSummaryColumns(), SplitSummaries(plan));
  if (!options.verbose) return;
  std::cout << "\n";
  WriteFields(output, head, std::cout);
  std::cout << "\n";
  WriteRecords(output, ClusterColumns(), clusters, std::cout);
  WriteSection(output, GroupColumns(), GroupRecords(plan));
}

void PrintPlan(const PlanOptions& options, int64_t line, const v1::ServerInfo& info, const v1::PlanReport& plan) {
  Record head = PlanHead(line, info, plan);
  if (options.output.format == OutputFormat::kJson) return PrintJson(options.output, std::move(head), plan);
  PrintTables(options, head, plan);
}

absl::Status RunPlan(const PlanOptions& options) {
  ASSIGN_OR_RETURN(TraceFile trace, TraceFile::Open(options.trace));
  ASSIGN_OR_RETURN(const int64_t index, trace.IndexOfLine(options.line));
  ASSIGN_OR_RETURN(TraceLine line, trace.Read(index));
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::RequestHeader& header = *line.request.header.mutable_request();
  header.set_request_id(absl::StrCat("plan-", trace.short_digest(), "/", line.line));
  header.set_validate_only(true);
  header.clear_wait_ms();
  grpc::ClientContext context;
  ASSIGN_OR_RETURN(const auto status,
                   UpdateActor(connection->stub(), context, line.request.header, line.request.groups));
  RETURN_IF_ERROR(OutcomeStatus(status));
  if (!status.has_plan()) return absl::InternalError("the server answered validate_only without a plan");
  ASSIGN_OR_RETURN(const auto info,
                   connection->Call(&v1::TrainingService::Stub::GetServerInfo, v1::GetServerInfoRequest()));
  PrintPlan(options, line.line, info, status.plan());
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show how the server would compute a request: clusters, waves, policies, bytes, seconds, reasons");
  command->add_option("TRACE", options->trace, "Trace file (.jsonl)")->required()->type_name("FILE");
  command->add_option("--line", options->line, "The request on this line of the file (default: the first)")
      ->check(Whole(1), "")
      ->type_name("N");
  command->add_flag(
      "-v,--verbose", options->verbose,
      "Every number too: bytes and seconds of each phase, the rates behind them, each group's cost model");
  AddServerOptions(command, &options->server);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma plan trace.jsonl --server 127.0.0.1:7070\n"
              "  stemma plan trace.jsonl --server 127.0.0.1:7070 --verbose\n"
              "  stemma plan trace.jsonl --line 12 --server 127.0.0.1:7070 -o json");
  command->callback([&run, options] { run = [options] { return RunPlan(*options); }; });
}

}  // namespace stemma::cli
