#include "server/protocol/running_job.h"

#include <algorithm>
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
                              std::optional<ResultCheck> results, uint32_t num_ranks) {
  Begin(id, Phase::kCallJob, std::move(results));
  AwaitAll(num_ranks);
  failures_.assign(num_ranks, absl::OkStatus());
  bytes_ = 0;
  watch_.emplace(what, predicted, stalled_after_);
}

void RunningJob::Prepare(absl::Time now, std::vector<internal::v1::StepKey> keys, const JobSeconds& predicted) {
  CHECK(is_update() && !keys.empty()) << id_;
  phase_ = Phase::kPreparing;
  keys_ = std::move(keys);
  AwaitAll(keys_.size());
  votes_.assign(keys_.size(), {});
  applied_.assign(keys_.size(), {});
  prepared_at_ = now;
  watch_.emplace(absl::StrCat("PREPARE of ", StepText(key())), predicted, stalled_after_);
}

void RunningJob::Commit(const internal::v1::Vote& vote, v1::StepResult::Outcome outcome, const JobSeconds& predicted) {
  CHECK(phase_ == Phase::kPreparing) << id_;
  phase_ = Phase::kCommitted;
  AwaitAll(keys_.size());
  vote_ = vote;
  outcome_ = outcome;
  watch_.emplace(absl::StrCat("APPLY of ", StepText(key())), predicted, stalled_after_);
}

void RunningJob::End() {
  if (!aborted_ || AllAnswered()) return Clear();
  phase_ = Phase::kEnding;
  results_.reset();
}

void RunningJob::GenerationEnded() {
  if (ending()) Clear();
}

void RunningJob::Clear() {
  phase_ = Phase::kNone;
  aborted_ = false;
  id_.clear();
  keys_.clear();
  answered_.clear();
  votes_.clear();
  applied_.clear();
  failures_.clear();
  known_failure_ = absl::OkStatus();
  vote_.Clear();
  results_.reset();
  watch_.reset();
}

bool RunningJob::AllAnswered() const { return std::find(answered_.begin(), answered_.end(), false) == answered_.end(); }

void RunningJob::AwaitAll(size_t num_ranks) { answered_.assign(num_ranks, false); }

bool RunningJob::Answered(uint32_t rank) {
  CHECK(Awaits(rank)) << id_ << ": rank " << rank;
  answered_[rank] = true;
  return AllAnswered();
}

bool RunningJob::Attempts(uint32_t rank, const internal::v1::StepKey& key) const {
  return is_update() && rank < keys_.size() && SameStepKey(keys_[rank], key);
}

bool RunningJob::AwaitsVote(uint32_t rank, const internal::v1::StepKey& key) const {
  return phase_ == Phase::kPreparing && Attempts(rank, key) && Awaits(rank);
}

bool RunningJob::AwaitsApplied(uint32_t rank, const internal::v1::StepKey& key) const {
  return phase_ == Phase::kCommitted && Attempts(rank, key) && Awaits(rank);
}

bool RunningJob::AwaitsDone(uint32_t rank) const { return phase_ == Phase::kCallJob && Awaits(rank); }

bool RunningJob::AddVote(uint32_t rank, internal::v1::Vote vote) {
  votes_.at(rank) = std::move(vote);
  return Answered(rank);
}

bool RunningJob::AddApplied(uint32_t rank, internal::v1::Applied applied) {
  applied_.at(rank) = std::move(applied);
  return Answered(rank);
}

bool RunningJob::AddDone(uint32_t rank, absl::Status failure, uint64_t bytes) {
  failures_.at(rank) = std::move(failure);
  bytes_ += bytes;
  return Answered(rank);
}

// Aborted: it could, and another could not.
absl::Status RunningJob::failure() const {
  absl::Status failure = known_failure_;
  if (!failure.ok()) return failure;
  for (const absl::Status& of_rank : failures_) {
    if (failure.ok() || absl::IsAborted(failure)) failure = of_rank.ok() ? failure : of_rank;
  }
  return failure;
}

absl::Status RunningJob::AddResult(const v1::GroupResult& group) {
  return results_ ? results_->Add(group) : absl::InvalidArgumentError("results of a job that has none");
}

absl::Status RunningJob::CheckAllCame() const {
  CHECK(phase_ == Phase::kCallJob && results_) << id_;
  return results_->CheckAllCame();
}

std::vector<internal::v1::Abort> RunningJob::Abort() {
  CHECK(can_abort()) << id_;
  aborted_ = true;
  std::vector<internal::v1::Abort> messages(answered_.size());
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    if (is_update()) *messages[rank].mutable_key() = keys_.at(rank);
    messages[rank].mutable_key()->set_request_id(id_);
  }
  return messages;
}

bool RunningJob::Stopped(uint32_t rank) {
  if (Answered(rank)) Clear();
  return true;
}

bool RunningJob::TakeStopped(uint32_t rank, const internal::v1::StepKey& key) {
  return ending() && rank < keys_.size() && SameStepKey(keys_[rank], key) && Awaits(rank) && Stopped(rank);
}

bool RunningJob::TakeStopped(uint32_t rank, const std::string& call_job) {
  return ending() && keys_.empty() && id_ == call_job && Awaits(rank) && Stopped(rank);
}

void RunningJob::Pass(absl::Duration counted) {
  if (watch_) watch_->Pass(counted);
}

void RunningJob::Heard(uint64_t progress, const std::string& phases) {
  if (watch_) watch_->Heard(progress, phases);
}

std::string RunningJob::Problem() const { return watch_ ? watch_->Problem() : ""; }

std::string StepText(const internal::v1::StepKey& key) {
  return absl::StrCat("step ", key.step(), " of request ", WorkerText(key.request_id()), " (attempt ", key.attempt(),
                      ")");
}

}  // namespace stemma::server
