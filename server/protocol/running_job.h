// The job that runs: a step of an update between its Prepare and its Applied, a log-prob pass, or an export. Knows
// which messages of the worker count, and gives the job up when it stands still.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) at most one job runs; it is watched from its begin to its end.
//  (2) a vote or Applied counts only in its phase and with all keys of the running attempt.
//
// None -> BeginUpdate -> (Prepare) preparing -> (Commit) committed -> (Prepare) the next step, or End.
// None -> BeginCallJob -> End.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/protocol/job_watch.h"
#include "server/protocol/result_check.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

class RunningJob {
 public:
  // `stalled_after`: the floor of every watch.
  explicit RunningJob(absl::Duration stalled_after) : stalled_after_(stalled_after) {}

  bool exists() const { return phase_ != Phase::kNone; }
  bool is_update() const { return phase_ == Phase::kPreparing || phase_ == Phase::kCommitted; }
  bool committed() const { return phase_ == Phase::kCommitted; }
  bool Is(const std::string& id) const { return exists() && id_ == id; }
  // REQUIRES: exists.
  const std::string& id() const { return id_; }

  // `results`: of those that the job may bring; nullopt: it brings none. REQUIRES: none runs. Prepare follows at once.
  void BeginUpdate(const std::string& id, std::optional<ResultCheck> results);
  void BeginCallJob(const std::string& id, const std::string& what, const JobSeconds& predicted,
                    std::optional<ResultCheck> results);
  void Prepare(absl::Time now, const internal::v1::StepKey& key, const JobSeconds& predicted);
  void Commit(const internal::v1::Vote& vote, v1::StepResult::Outcome outcome, const JobSeconds& predicted);
  void End();

  bool AwaitsVote(const internal::v1::StepKey& key) const;
  bool AwaitsApplied(const internal::v1::StepKey& key) const;
  // Whether the key is that of the attempt which prepares or is committed.
  bool Attempts(const internal::v1::StepKey& key) const;
  // Errors: InvalidArgument - the job has no results, or not these.
  absl::Status AddResult(const v1::GroupResult& group);

  // REQUIRES: is_update.
  const internal::v1::StepKey& key() const { return key_; }
  absl::Time prepared_at() const { return prepared_at_; }
  // REQUIRES: committed.
  const internal::v1::Vote& vote() const { return vote_; }
  v1::StepResult::Outcome outcome() const { return outcome_; }

  // Returns what stops the job before its end; late answers are ignored by their keys. REQUIRES: exists, not committed.
  internal::v1::Abort AbortMessage() const;

  void Pass(absl::Duration counted);
  void Heard(const internal::v1::Heartbeat& heartbeat);
  // "", or why its worker is given up.
  std::string Problem() const;

 private:
  enum class Phase { kNone, kPreparing, kCommitted, kCallJob };

  void Begin(const std::string& id, Phase phase, std::optional<ResultCheck> results);

  const absl::Duration stalled_after_;
  Phase phase_ = Phase::kNone;
  std::string id_;
  internal::v1::StepKey key_;
  internal::v1::Vote vote_;
  v1::StepResult::Outcome outcome_ = v1::StepResult::APPLIED;
  absl::Time prepared_at_ = absl::InfinitePast();
  std::optional<ResultCheck> results_;
  std::optional<JobWatch> watch_;  // of the phase
};

// A step in an operator's words.
std::string StepText(const internal::v1::StepKey& key);

}  // namespace stemma::server
