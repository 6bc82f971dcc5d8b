#include "server/protocol/running_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/step_key.h"
#include "glog/logging.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {

void RunningJob::Begin(const std::string& id, Phase phase, std::optional<ResultCheck> results) {
  CHECK(!exists()) << id_ << " runs, " << id << " cannot begin";
  phase_ = phase;
  id_ = id;
  results_ = std::move(results);
}

void RunningJob::BeginUpdate(const std::string& id, std::optional<ResultCheck> results) {
  Begin(id, Phase::kPreparing, std::move(results));
}

void RunningJob::BeginCallJob(const std::string& id, const std::string& what, const JobSeconds& predicted,
                              std::optional<ResultCheck> results) {
  Begin(id, Phase::kCallJob, std::move(results));
  watch_.emplace(what, predicted, stalled_after_);
}

void RunningJob::Prepare(absl::Time now, const internal::v1::StepKey& key, const JobSeconds& predicted) {
  CHECK(is_update()) << id_;
  phase_ = Phase::kPreparing;
  key_ = key;
  prepared_at_ = now;
  watch_.emplace(absl::StrCat("PREPARE of ", StepText(key)), predicted, stalled_after_);
}

void RunningJob::Commit(const internal::v1::Vote& vote, v1::StepResult::Outcome outcome, const JobSeconds& predicted) {
  CHECK(phase_ == Phase::kPreparing) << id_;
  phase_ = Phase::kCommitted;
  vote_ = vote;
  outcome_ = outcome;
  watch_.emplace(absl::StrCat("APPLY of ", StepText(key_)), predicted, stalled_after_);
}

void RunningJob::End() {
  phase_ = Phase::kNone;
  id_.clear();
  key_.Clear();
  vote_.Clear();
  results_.reset();
  watch_.reset();
}

bool RunningJob::AwaitsVote(const internal::v1::StepKey& key) const {
  return phase_ == Phase::kPreparing && SameStepKey(key_, key);
}

bool RunningJob::AwaitsApplied(const internal::v1::StepKey& key) const {
  return phase_ == Phase::kCommitted && SameStepKey(key_, key);
}

bool RunningJob::Attempts(const internal::v1::StepKey& key) const { return is_update() && SameStepKey(key_, key); }

absl::Status RunningJob::AddResult(const v1::GroupResult& group) {
  return results_ ? results_->Add(group) : absl::InvalidArgumentError("results of a job that has none");
}

internal::v1::Abort RunningJob::AbortMessage() const {
  CHECK(exists() && !committed());
  internal::v1::Abort abort;
  *abort.mutable_key() = key_;
  abort.mutable_key()->set_request_id(id_);
  return abort;
}

void RunningJob::Pass(absl::Duration counted) {
  if (watch_) watch_->Pass(counted);
}

void RunningJob::Heard(const internal::v1::Heartbeat& heartbeat) {
  if (watch_) watch_->Heard(heartbeat.progress(), WorkerText(heartbeat.phase()));
}

std::string RunningJob::Problem() const { return watch_ ? watch_->Problem() : ""; }

std::string StepText(const internal::v1::StepKey& key) {
  return absl::StrCat("step ", key.step(), " of request ", WorkerText(key.request_id()), " (attempt ", key.attempt(),
                      ")");
}

}  // namespace stemma::server
