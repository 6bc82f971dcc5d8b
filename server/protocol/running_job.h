// The job that runs: a step of an update between its Prepare and its Applied, a log-prob pass, a verification, or an
// export. Knows which messages of the ranks count, has them all together before the job goes on, and gives it up when
// it stands still.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) at most one job runs; it is watched from its begin to its end, but while it waits for the server's own disk
//      (CheckpointSave).
//  (2) a vote or Applied counts only in its phase, once of each rank, and with all keys of the running attempt.
//  (3) the job stands still when no rank moves: one that hangs is waited for by the others.
//  (4) a job that was aborted is over when its ranks have stopped, not when its client was told: until each rank has
//      answered, the job is watched and no other begins. So a rank that hangs is found, however often clients give up
//      waiting for it, and is sent no further payload, behind which it would not hear that its stream ends.
//
// None -> BeginUpdate -> (Prepare) preparing -> (Commit) committed -> (Prepare) the next step, or End.
// None -> BeginCallJob -> (Done of each rank) -> End.
// Preparing, or a call job -> Abort -> End -> ending -> (TakeStopped of each rank, or GenerationEnded) -> none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

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

  bool exists() const { return phase_ != Phase::kNone; }  // one that is ending, too
  // Tells whether all that is left of the job is that ranks have not answered its Abort.
  bool ending() const { return phase_ == Phase::kEnding; }
  bool can_abort() const { return exists() && !committed() && !ending(); }
  bool is_update() const { return phase_ == Phase::kPreparing || phase_ == Phase::kCommitted; }
  bool committed() const { return phase_ == Phase::kCommitted; }
  // Tells whether the job of this id runs, and has not ended for its client.
  bool Is(const std::string& id) const { return exists() && !ending() && id_ == id; }
  // REQUIRES: exists.
  const std::string& id() const { return id_; }
  std::string what() const { return watch_ ? watch_->what() : ""; }  // in an operator's words
  bool HasAnswered(uint32_t rank) const { return rank < answered_.size() && answered_[rank]; }

  // `results`: of those that the job may bring; nullopt: it brings none. REQUIRES: none runs. Prepare follows at once.
  void BeginUpdate(const std::string& id, std::optional<ResultCheck> results);
  void BeginCallJob(const std::string& id, const std::string& what, const JobSeconds& predicted,
                    std::optional<ResultCheck> results, uint32_t num_ranks);
  // `keys`: of the ranks, in their order.
  void Prepare(absl::Time now, std::vector<internal::v1::StepKey> keys, const JobSeconds& predicted);
  void Commit(const internal::v1::Vote& vote, v1::StepResult::Outcome outcome, const JobSeconds& predicted);
  // Ends the job for its client. One that was aborted is ending until its ranks have answered.
  void End();
  // Takes what a rank answers of a job that is ending: its vote or refusal, or the end of the call job. False: nothing
  // is awaited of it.
  bool TakeStopped(uint32_t rank, const internal::v1::StepKey& key);
  bool TakeStopped(uint32_t rank, const std::string& call_job);
  // The ranks are gone: a job that is ending is over.
  void GenerationEnded();

  bool AwaitsVote(uint32_t rank, const internal::v1::StepKey& key) const;
  bool AwaitsApplied(uint32_t rank, const internal::v1::StepKey& key) const;
  // Whether the key is that of the rank in the attempt which prepares or is committed.
  bool Attempts(uint32_t rank, const internal::v1::StepKey& key) const;
  // Keep what one rank said; true: it was the last of all ranks. REQUIRES: it is awaited.
  bool AddVote(uint32_t rank, internal::v1::Vote vote);
  bool AddApplied(uint32_t rank, internal::v1::Applied applied);
  // The same of a call job, with the rank's failure, or OK, and the bytes that it wrote. False where the rank has ended
  // before.
  bool AwaitsDone(uint32_t rank) const;
  bool AddDone(uint32_t rank, absl::Status failure, uint64_t bytes);
  // Says why the call job will fail on its ranks, where the server knows it better than they.
  void SetFailure(absl::Status failure) { known_failure_ = std::move(failure); }
  // Errors: InvalidArgument - the job has no results, or not these.
  absl::Status AddResult(const v1::GroupResult& group);
  // Tells whether all results came (ResultCheck). REQUIRES: a call job that brings some.
  absl::Status CheckAllCame() const;

  // REQUIRES: is_update.
  const internal::v1::StepKey& key() const { return keys_.front(); }  // rank 0's
  absl::Time prepared_at() const { return prepared_at_; }
  std::span<const internal::v1::Vote> votes() const { return votes_; }         // those that came last, by rank
  std::span<const internal::v1::Applied> applied() const { return applied_; }  // by rank
  // REQUIRES: committed.
  const internal::v1::Vote& vote() const { return vote_; }  // of all ranks together
  v1::StepResult::Outcome outcome() const { return outcome_; }
  // REQUIRES: a call job all of whose ranks are done. Returns the failure that was set, or the first one that is a
  // rank's own.
  absl::Status failure() const;
  uint64_t bytes() const { return bytes_; }

  // Returns what stops the job on each rank before its end, which follows at once. REQUIRES: can_abort.
  std::vector<internal::v1::Abort> Abort();

  void Pass(absl::Duration counted);
  // Takes the counters of all ranks together, and what each one does.
  void Heard(uint64_t progress, const std::string& phases);
  // "", or why its worker is given up.
  std::string Problem() const;

 private:
  enum class Phase { kNone, kPreparing, kCommitted, kCallJob, kEnding };

  void Begin(const std::string& id, Phase phase, std::optional<ResultCheck> results);
  // Makes room for an answer of each rank.
  void AwaitAll(size_t num_ranks);
  bool Awaits(uint32_t rank) const { return rank < answered_.size() && !answered_[rank]; }
  bool AllAnswered() const;
  bool Answered(uint32_t rank);
  bool Stopped(uint32_t rank);
  void Clear();

  const absl::Duration stalled_after_;
  Phase phase_ = Phase::kNone;
  std::string id_;
  std::vector<internal::v1::StepKey> keys_;  // by rank
  std::vector<bool> answered_;               // by rank: what the phase waits for
  bool aborted_ = false;
  std::vector<internal::v1::Vote> votes_;
  std::vector<internal::v1::Applied> applied_;
  std::vector<absl::Status> failures_;  // of a call job
  absl::Status known_failure_;          // the same, of none of its ranks
  uint64_t bytes_ = 0;
  internal::v1::Vote vote_;
  v1::StepResult::Outcome outcome_ = v1::StepResult::APPLIED;
  absl::Time prepared_at_ = absl::InfinitePast();
  std::optional<ResultCheck> results_;
  std::optional<JobWatch> watch_;  // of the phase
};

// A step in an operator's words.
std::string StepText(const internal::v1::StepKey& key);

}  // namespace stemma::server
