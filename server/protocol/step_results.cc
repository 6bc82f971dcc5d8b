#include "server/protocol/step_results.h"

#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "server/protocol/gradient_problem.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/step_metrics.h"
#include "server/protocol/step_trace.h"

namespace stemma::server {
namespace {

// A step that is repeated need not meet again what its decision was made for.
std::string SkippedText(const CoordinatorParts& parts, const UpdateRecord& record) {
  const std::string problem =
      GradientProblem(record.request->update.adam(), parts.jobs.running().vote(), parts.gang.config());
  return absl::StrCat("the step was skipped: ",
                      problem.empty() ? "its gradient was not finite when that was decided" : problem);
}

}  // namespace

v1::StepResult ResultOf(const CoordinatorParts& parts, const UpdateRecord& record, v1::StepResult::Outcome outcome,
                        std::optional<double> apply_s) {
  const RunningJob& running = parts.jobs.running();
  const StepNumbers& numbers = record.plan.numbers(record.k);
  v1::StepResult result;
  result.set_step(parts.lineage.step());
  result.set_weight_version(parts.lineage.weight_version());
  result.set_attempts(record.attempt);
  result.set_outcome(outcome);
  result.set_epoch(record.plan.epoch(record.k));
  result.set_num_groups(record.plan.step(record.k).groups_size());
  result.mutable_warnings()->Add(numbers.empty.warnings.begin(), numbers.empty.warnings.end());
  result.mutable_warnings()->Add(numbers.lone_rewards.begin(), numbers.lone_rewards.end());
  if (apply_s && IsTraced(record.request->update, record.k)) {
    *result.mutable_trace() = MakeStepTrace(parts.gang, running.votes(), running.applied());
  }
  if (outcome == v1::StepResult::SKIPPED_NONFINITE) {
    result.add_warnings(SkippedText(parts, record));
    SetLogProbSeconds(running.vote().sums(), *result.mutable_metrics());
    return result;
  }
  // A step without a gradient may have run for its log-probs, and has numbers then.
  const bool empty = outcome == v1::StepResult::SKIPPED_EMPTY && (!apply_s || running.vote().empty());
  internal::v1::Vote vote = empty ? internal::v1::Vote() : running.vote();
  // It went to the workers for the request's own pass for log-probs alone.
  if (empty && apply_s) vote.mutable_sums()->set_log_probs_s(running.vote().sums().log_probs_s());
  SetStepMetrics({.header = record.request->update,
                  .report = StepReportOf(record.plan, record.k),
                  .state = record.plan.report.state(),
                  .numbers = numbers,
                  .vote = vote,
                  .apply_s = empty ? 0 : apply_s.value(),
                  .elapsed = apply_s && !empty ? parts.out.now() - running.prepared_at() : absl::ZeroDuration(),
                  .votes = empty ? std::span<const internal::v1::Vote>() : running.votes(),
                  .applied = empty ? std::span<const internal::v1::Applied>() : running.applied(),
                  .expert_sets = EpSize(parts.gang.mesh()),
                  .kernels_off = parts.gang.KernelsOff()},
                 *result.mutable_metrics());
  return result;
}

}  // namespace stemma::server
