#include "server/protocol/job_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cost/state_bytes.h"
#include "server/protocol/step_messages.h"

namespace stemma::server {
namespace {

// A phase of a cluster has one wave or more, so the longest one bounds what moves the counter once.
void Add(const v1::StepReport& report, JobSeconds& seconds) {
  for (const v1::ClusterReport& cluster : report.clusters()) {
    const v1::PhaseSeconds& of = cluster.seconds();
    seconds.longest = std::max({seconds.longest, of.prefix_forward(), of.suffix(), of.prefix_backward()});
  }
  const v1::PhaseSeconds& all = report.seconds();
  seconds.total += all.prefix_forward() + all.suffix() + all.prefix_backward() + report.parameters_s();
}

// A checkpoint's weights are read in one piece, once for a pass at the most.
JobSeconds AddReading(const RequestPlan& plan, JobSeconds seconds) {
  const double read_s = static_cast<double>(plan.report.checkpoint_weights_bytes()) / kBytesPerSecond;
  seconds.longest = std::max(seconds.longest, read_s);
  seconds.total += read_s * std::max<uint32_t>(plan.report.log_prob_passes(), 1);
  return seconds;
}

JobSeconds OnePiece(double seconds) { return {.longest = seconds, .total = seconds}; }

}  // namespace

absl::Duration CountedTime::Until(absl::Time now, absl::Time handled_at) {
  handled_at = std::max(now, handled_at);
  const absl::Duration since =
      std::min(now - std::exchange(last_, now), handled_at - std::exchange(last_handled_, handled_at));
  return std::clamp(since, absl::ZeroDuration(), kCountedMax);
}

JobSeconds PrepareSeconds(const RequestPlan& plan, uint32_t k, uint64_t payload_bytes) {
  JobSeconds seconds = {.total = static_cast<double>(payload_bytes) / kBytesPerSecond};
  Add(StepReportOf(plan, k), seconds);
  if (!RunsEntryPass(plan, k)) return seconds;
  for (uint32_t pass = 0; pass < plan.report.log_prob_passes(); ++pass) Add(plan.report.steps(0), seconds);
  return AddReading(plan, seconds);
}

JobSeconds ApplySeconds(const RequestPlan& plan, uint32_t k) {
  return OnePiece(StepReportOf(plan, k).seconds().apply());
}

JobSeconds LogProbSeconds(const RequestPlan& plan, uint64_t payload_bytes) {
  return AddReading(plan, PrepareSeconds(plan, 0, payload_bytes));
}

JobSeconds VerifySeconds(const RequestPlan& plan, uint64_t payload_bytes) {
  const JobSeconds reuse = PrepareSeconds(plan, 0, payload_bytes), dense = PrepareSeconds(*plan.dense, 0, 0);
  return {.longest = std::max(reuse.longest, dense.longest), .total = reuse.total + dense.total};
}

JobSeconds ExportSeconds(const ModelConfig& model) {
  return OnePiece(static_cast<double>(StateBytesOf(model, RunDtype::kFp64).weights) / kBytesPerSecond);
}

JobSeconds SaveSeconds(const ModelConfig& model) {
  return OnePiece(3 * static_cast<double>(StateBytesOf(model, RunDtype::kFp64).weights) / kBytesPerSecond);
}

JobSeconds LoadSeconds(const ModelConfig& model, RunDtype dtype) {
  return OnePiece(static_cast<double>(StateBytesOf(model, dtype).total()) / kBytesPerSecond);
}

JobWatch::JobWatch(std::string what, const JobSeconds& predicted, absl::Duration floor)
    : what_(std::move(what)),
      predicted_(predicted),
      still_max_(std::max(floor, absl::Seconds(kWatchMultiple * predicted.longest))),
      total_max_(std::max({kFloorsOfJob * floor, still_max_, absl::Seconds(kWatchMultiple * predicted.total)})) {}

void JobWatch::Pass(absl::Duration counted) {
  still_ += counted;
  total_ += counted;
}

void JobWatch::Heard(uint64_t counter, const std::string& phase) {
  phase_ = phase;
  if (std::exchange(counter_, counter) != counter) Moved();
}

std::string JobWatch::Problem() const {
  const std::string where = phase_.empty() ? "" : absl::StrCat(" (", phase_, ")");
  if (still_ >= still_max_) {
    return absl::StrFormat("%s%s stands still for %s; predicted for its longest piece: %.3g s", what_, where,
                           absl::FormatDuration(absl::Trunc(still_, absl::Seconds(1))), predicted_.longest);
  }
  if (total_ >= total_max_) {
    return absl::StrFormat("%s%s does not end within %s; predicted: %.3g s", what_, where,
                           absl::FormatDuration(absl::Trunc(total_, absl::Seconds(1))), predicted_.total);
  }
  return "";
}

}  // namespace stemma::server
