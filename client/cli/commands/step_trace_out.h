// --trace-out of `stemma replay`: which step of the replay is traced, and the file that its trace goes to.
//
// The file is opened before the first step, and written when the request of that step has been answered; how, says
// client/cli/output/report_file.h: as --report does.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/output/report_file.h"
#include "client/cli/trace/trace_file.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

class StepTraceOut {
 public:
  // Finds step `step`, counted from 1, among those of the requests with indices `begin` to `end` of the trace, which is
  // read from its begin: the caller's own comes later. Errors: exit code 2 - there are fewer steps, or the file cannot
  // be written; those of reading the trace.
  static absl::StatusOr<StepTraceOut> Open(const std::string& path, int64_t step, TraceFile trace, int64_t begin,
                                           int64_t end);

  // Asks for the trace, in the header of its request.
  void Ask(int64_t index, v1::UpdateHeader& header) const;
  // Writes the trace if this is the answer to its request. Errors: the answer has none, and why; writing.
  absl::Status Write(int64_t index, const v1::RequestStatus& status);
  // Asked when all requests have been answered: one whose weights were lost has no answer.
  absl::Status CheckWritten() const;
  // "wrote ..."; "": nothing was written.
  const std::string& summary() const { return summary_; }

 private:
  StepTraceOut(std::string path, int64_t step, int64_t index, uint32_t k, ReportFile file);

  absl::Status NoTrace(const std::string& why) const;

  const std::string path_;
  const int64_t step_;
  const int64_t index_;  // of the request
  const uint32_t k_;     // of the step in it
  ReportFile file_;
  std::string summary_;
};

}  // namespace stemma::cli
