// Replays a trace: one request after the other, in the trace's order, each under an id that a rerun derives again, so
// no line ever steps twice on one server. Every request is held to the lineage that the server had at the start: when
// those weights are lost the replay ends, unless lineages are followed.
//
// Ctrl-C (or SIGTERM) stops before the next request; a second one leaves at once (what was sent goes on in the server).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/calls/connection.h"
#include "client/cli/commands/expected.h"
#include "client/cli/commands/lineage_pin.h"
#include "client/cli/commands/lr_schedule.h"
#include "client/cli/commands/step_trace_out.h"
#include "client/cli/output/progress.h"
#include "client/cli/output/records.h"
#include "client/cli/output/report_file.h"
#include "client/cli/trace/trace_file.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::cli {

struct ReplayOptions {
  ConnectionOptions server;
  OutputOptions output;
  std::string trace;
  LrSchedule lr_schedule;
  v1::Schedule schedule = v1::SCHEDULE_UNSPECIFIED;  // unspecified: each line's own
  std::string run_id;      // not empty: ids are run_id/LINE, instead of the trace's own or those from its digest
  int64_t start = 1;       // request of the trace, from 1
  int64_t limit = 0;       // 0: all
  int retries = 6;         // of one request, with its id, when the server is away
  std::string verify;      // file of expected values; empty: none
  std::string report;      // file; empty: none
  std::string trace_out;   // file; empty: none
  int64_t trace_step = 1;  // of the replay, from 1
  bool progress = false;
  bool follow_lineage = false;  // go on when weights are lost
};

class ReplayRun {
 public:
  // `report` and `trace_out`: open where options name one.
  ReplayRun(ReplayOptions options, TraceFile trace, std::optional<ExpectedSteps> expected,
            std::optional<ReportFile> report, std::optional<StepTraceOut> trace_out);

  // Errors: kPartial when interrupted, kOther when expected values differ or did not come, else that of the request
  // that failed.
  absl::Status Run();

 private:
  absl::Status SubmitAll(Connection& connection, RecordWriter& writer);
  // Empty: its weights are lost, and lineages are followed.
  absl::StatusOr<std::optional<v1::RequestStatus>> SubmitPinned(Connection& connection, const TraceLine& line);
  absl::StatusOr<v1::RequestStatus> Submit(Connection& connection, const TraceLine& line);
  TraceLine Prepared(TraceLine line, int64_t index) const;
  void Report(const TraceLine& line, const v1::RequestStatus& status, RecordWriter& writer);
  void Tell(const TraceLine& line, const std::string& text);
  // Compares a step that came.
  void Verify(int64_t line, int64_t k, const Record& step);
  // Notes which steps of the line did not come after the first `count`.
  void VerifyCount(int64_t line, int64_t count);
  // Notes that the line's request was rolled back, whatever is expected of it.
  void VerifyRolledBack(int64_t line);
  absl::Status WriteReport(const absl::Status& status);
  void PrintSummary() const;
  int64_t EndIndex() const;

  ReplayOptions options_;
  TraceFile trace_;
  std::optional<ExpectedSteps> expected_;
  std::optional<ReportFile> report_;
  std::optional<StepTraceOut> trace_out_;
  Progress progress_;
  LineagePin pin_;
  std::vector<Record> steps_;
  std::vector<std::string> differences_;
  int64_t as_expected_ = 0;  // steps
  bool verified_ = false;    // every request was answered, and every step was there and as expected
  int64_t submitted_ = 0;
  int64_t replayed_ = 0;
  int64_t rolled_back_ = 0;
};

}  // namespace stemma::cli
