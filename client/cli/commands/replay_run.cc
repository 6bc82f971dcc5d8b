#include "client/cli/commands/replay_run.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/calls/interrupt.h"
#include "client/cli/calls/submit.h"
#include "client/cli/output/request_records.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

// 1, 2, 4, 8, 8, ... s: a server that is started again is there within the first.
absl::Duration RetryDelay(int attempt) { return absl::Seconds(1 << std::clamp(attempt - 1, 0, 3)); }

double NumberOrNan(const Record& record, const std::string& key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

double Sum(const std::vector<Record>& records, const std::string& key) {
  double sum = 0;
  for (const Record& record : records) {
    const double number = NumberOrNan(record, key);
    if (!std::isnan(number)) sum += number;
  }
  return sum;
}

}  // namespace

ReplayRun::ReplayRun(ReplayOptions options, TraceFile trace, std::optional<ExpectedSteps> expected,
                     std::optional<ReportFile> report, std::optional<StepTraceOut> trace_out)
    : options_(std::move(options)),
      trace_(std::move(trace)),
      expected_(std::move(expected)),
      report_(std::move(report)),
      trace_out_(std::move(trace_out)),
      progress_(EndIndex() - options_.start + 1, options_.progress),
      pin_(options_.follow_lineage) {}

int64_t ReplayRun::EndIndex() const {
  const int64_t count = trace_.num_requests();
  return options_.limit == 0 ? count : std::min(count, options_.start - 1 + options_.limit);
}

absl::Status ReplayRun::Run() {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options_.server));
  ASSIGN_OR_RETURN(const auto model, connection->Call(&v1::TrainingService::Stub::GetModel, v1::GetModelRequest()));
  pin_.Begin(model);
  CatchInterrupts();
  RecordWriter writer(options_.output, StepColumns(), std::cout);
  absl::Status status = SubmitAll(*connection, writer);
  progress_.Clear();
  PrintSummary();
  verified_ = status.ok() && differences_.empty();
  if (status.ok() && !verified_) {
    status = absl::UnknownError(absl::StrCat(differences_.size(), " of ", as_expected_ + differences_.size(),
                                             " steps differ from ", options_.verify, ":\n  ",
                                             absl::StrJoin(differences_, "\n  ")));
  }
  if (status.ok() && trace_out_) status = trace_out_->CheckWritten();
  const absl::Status report_status = WriteReport(status);
  return status.ok() ? report_status : status;
}

absl::Status ReplayRun::SubmitAll(Connection& connection, RecordWriter& writer) {
  for (int64_t index = options_.start - 1; index < EndIndex(); ++index) {
    if (Interrupted()) {
      return PartialError(
          absl::StrCat("interrupted after ", submitted_, " requests; run the same command again to go on"));
    }
    progress_.Show(submitted_, absl::StrCat("line ", trace_.LineOf(index)));
    ASSIGN_OR_RETURN(TraceLine line, trace_.Read(index));
    line = Prepared(std::move(line), index);
    ASSIGN_OR_RETURN(const auto status, SubmitPinned(connection, line));
    progress_.Clear();
    ++submitted_;
    if (!status) continue;
    Report(line, *status, writer);
    RETURN_IF_ERROR(OutcomeStatus(*status));
    if (trace_out_) RETURN_IF_ERROR(trace_out_->Write(index, *status));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::RequestStatus>> ReplayRun::SubmitPinned(Connection& connection,
                                                                         const TraceLine& line) {
  absl::StatusOr<v1::RequestStatus> status = Submit(connection, line);
  if (status.ok()) {
    Tell(line, pin_.Saw(*status));
    return std::optional(*std::move(status));
  }
  if (!pin_.MayGoOn(status.status())) return pin_.Explained(status.status());
  ++rolled_back_;
  Tell(line, std::string(status.status().message()));
  Tell(line, pin_.Saw(status.status()));
  VerifyRolledBack(line.line);
  return std::nullopt;
}

void ReplayRun::Tell(const TraceLine& line, const std::string& text) {
  if (text.empty()) return;
  progress_.Clear();
  std::cerr << "line " << line.line << ": " << text << std::endl;
}

// The schedule of learning rates counts requests of the whole trace, whatever `start` is.
TraceLine ReplayRun::Prepared(TraceLine line, int64_t index) const {
  v1::RequestHeader& header = *line.request.header.mutable_request();
  if (!options_.run_id.empty()) header.set_request_id(absl::StrCat(options_.run_id, "/", line.line));
  if (options_.schedule != v1::SCHEDULE_UNSPECIFIED) header.set_schedule(options_.schedule);
  header.set_validate_only(false);
  header.clear_wait_ms();
  pin_.Set(header);
  line.request.header.clear_trace_step();
  if (trace_out_) trace_out_->Ask(index, line.request.header);
  v1::AdamParams& adam = *line.request.header.mutable_adam();
  if (adam.has_learning_rate()) adam.set_learning_rate(adam.learning_rate() * options_.lr_schedule.Factor(index));
  return line;
}

// UNAVAILABLE is ambiguous for a write; the same id makes sending it again safe. A server that says that it starts or
// recovers is there, and will serve: that uses up no retry.
absl::StatusOr<v1::RequestStatus> ReplayRun::Submit(Connection& connection, const TraceLine& line) {
  bool told = false;
  for (int attempt = 0;;) {
    grpc::ClientContext context;
    auto status = UpdateActor(connection.stub(), context, line.request.header, line.request.groups);
    if (status.ok() || !IsRetryable(status.status()) || Interrupted()) return status;
    const bool loads = HasReason(status.status(), Reason::kRecovering) || HasReason(status.status(), Reason::kStarting);
    if (!loads && attempt == options_.retries) return status;
    attempt = loads ? 0 : attempt + 1;
    if (!loads || !told) {
      Tell(line, absl::StrCat(ErrorText(status.status()), "; sending it again with the same id",
                              loads ? "" : absl::StrCat(" (", attempt, " of ", options_.retries, ")")));
    }
    told = loads;
    RealClock().Sleep(std::max(RetryDelay(attempt), GetErrorDetails(status.status()).retry_after));
  }
}

void ReplayRun::Report(const TraceLine& line, const v1::RequestStatus& status, RecordWriter& writer) {
  replayed_ += status.replayed() ? 1 : 0;
  for (const std::string& warning : status.result().warnings()) Tell(line, warning);
  for (int k = 0; k < status.result().steps_size(); ++k) {
    Record record;
    record["line"] = line.line;
    record["k"] = k;
    record["request_id"] = status.request_id();
    record["replayed"] = status.replayed();
    record["lineage"] = status.lineage();
    record["learning_rate"] = line.request.header.adam().learning_rate();
    record.update(StepRecord(status.result().steps(k)));
    const auto& metrics = status.result().steps(k).metrics();
    record["metrics"] = std::map<std::string, double>(metrics.begin(), metrics.end());
    writer.Write(record);
    Verify(line.line, k, record);
    steps_.push_back(std::move(record));
  }
  VerifyCount(line.line, status.result().steps_size());
}

void ReplayRun::Verify(int64_t line, int64_t k, const Record& step) {
  if (!expected_) return;
  const std::string difference = expected_->Compare(line, k, NumberOrNan(step, "loss"), NumberOrNan(step, "grad_norm"));
  if (difference.empty()) {
    ++as_expected_;
  } else {
    differences_.push_back(difference);
  }
}

void ReplayRun::VerifyCount(int64_t line, int64_t count) {
  if (!expected_) return;
  for (std::string& missing : expected_->Missing(line, count)) differences_.push_back(std::move(missing));
}

void ReplayRun::VerifyRolledBack(int64_t line) {
  if (!expected_) return;
  const size_t before = differences_.size();
  VerifyCount(line, 0);
  if (differences_.size() == before) differences_.push_back(absl::StrCat("line ", line, ": was rolled back"));
}

absl::Status ReplayRun::WriteReport(const absl::Status& status) {
  if (!report_) return absl::OkStatus();
  Record report;
  report["schema"] = "stemma.replay_report.v1";
  report["trace"] = trace_.path();
  report["trace_sha256"] = trace_.digest();
  report["requests_submitted"] = submitted_;
  report["requests_replayed"] = replayed_;
  report["requests_rolled_back"] = rolled_back_;
  report["lineage"] = pin_.lineage();
  report["tokens_logical"] = static_cast<uint64_t>(Sum(steps_, "tokens_logical"));
  report["tokens_computed"] = static_cast<uint64_t>(Sum(steps_, "tokens_computed"));
  report["seconds"] = Sum(steps_, "seconds");
  report["verified"] = expected_ ? Record(verified_) : Record();
  report["differences"] = differences_;
  report["error"] = status.ok() ? Record() : Record(ErrorText(status));
  report["steps"] = steps_;
  return report_->Write(JsonText(report, /*indent=*/2) + "\n");
}

void ReplayRun::PrintSummary() const {
  const double logical = Sum(steps_, "tokens_logical");
  const double computed = Sum(steps_, "tokens_computed");
  std::cerr << absl::StrFormat("%d requests (%d answered before), %d steps, %.0f tokens computed of %.0f, %.2f s",
                               submitted_, replayed_, steps_.size(), computed, logical, Sum(steps_, "seconds"));
  if (rolled_back_ > 0) std::cerr << absl::StrFormat(", %d requests rolled back", rolled_back_);
  if (expected_)
    std::cerr << absl::StrFormat(", %d of %d as expected", as_expected_, as_expected_ + differences_.size());
  std::cerr << std::endl;
  if (trace_out_ && !trace_out_->summary().empty()) std::cerr << trace_out_->summary() << std::endl;
}

}  // namespace stemma::cli
