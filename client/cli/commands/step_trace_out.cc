#include "client/cli/commands/step_trace_out.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/step_trace_json.h"
#include "common/admission/mini_batches.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

// No server takes a request of so many steps; a sum over a trace's requests fits all the same.
constexpr uint64_t kStepsMax = uint64_t{1} << 32;

}  // namespace

StepTraceOut::StepTraceOut(std::string path, int64_t step, int64_t index, uint32_t k, ReportFile file)
    : path_(std::move(path)), step_(step), index_(index), k_(k), file_(std::move(file)) {}

absl::StatusOr<StepTraceOut> StepTraceOut::Open(const std::string& path, int64_t step, TraceFile trace, int64_t begin,
                                                int64_t end) {
  uint64_t steps = 0;
  for (int64_t index = begin; index < end; ++index) {
    ASSIGN_OR_RETURN(const TraceLine line, trace.Read(index));
    const uint64_t before = steps;
    steps += std::min(NumSteps(line.request.header, line.request.groups.size()), kStepsMax);
    if (steps < static_cast<uint64_t>(step)) continue;
    absl::StatusOr<ReportFile> file = ReportFile::Open(path);
    if (!file.ok()) return UsageError(absl::StrCat("--trace-out: ", file.status().message()));
    return StepTraceOut(path, step, index, static_cast<uint32_t>(static_cast<uint64_t>(step) - 1 - before),
                        *std::move(file));
  }
  return UsageError(absl::StrCat("--trace-step ", step, ": the requests to be submitted hold ", steps, " steps"));
}

void StepTraceOut::Ask(int64_t index, v1::UpdateHeader& header) const {
  if (index == index_) header.set_trace_step(k_);
}

absl::Status StepTraceOut::Write(int64_t index, const v1::RequestStatus& status) {
  if (index != index_) return absl::OkStatus();
  const auto k = static_cast<int>(k_);
  if (k >= status.result().steps_size() || !status.result().steps(k).has_trace()) {
    return NoTrace(status.replayed() ? "the request was answered before, under this id; --run-id gives it another one"
                                     : "nothing in its mini-batch has a gradient, or the server dropped it");
  }
  const v1::StepResult& step = status.result().steps(k);
  const StepTraceLabels labels{absl::StrCat("stemma ", STEMMA_VERSION), status.request_id(), step.step()};
  RETURN_IF_ERROR(file_.Write(StepTraceJson(step.trace(), labels)));
  int64_t spans = 0;
  uint64_t dropped = 0;
  for (const v1::RankTrace& rank : step.trace().ranks()) {
    spans += rank.spans().spans_size();
    dropped += rank.spans().dropped();
  }
  summary_ = absl::StrCat("wrote ", path_, ": step ", step_, ", ", spans, " spans of ", step.trace().ranks_size(),
                          step.trace().ranks_size() == 1 ? " rank" : " ranks");
  if (dropped > 0) absl::StrAppend(&summary_, "; ", dropped, " more, to its end, are above a trace's limit");
  return absl::OkStatus();
}

absl::Status StepTraceOut::CheckWritten() const {
  return summary_.empty() ? NoTrace("the weights of its request were lost") : absl::OkStatus();
}

absl::Status StepTraceOut::NoTrace(const std::string& why) const {
  return absl::FailedPreconditionError(absl::StrCat("--trace-out: step ", step_, " has no trace: ", why));
}

}  // namespace stemma::cli
