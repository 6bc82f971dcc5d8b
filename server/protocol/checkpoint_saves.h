// Saving checkpoints, on demand and by themselves, up to the row of the journal that says so.
//
// A save is a job in the queue until its folder is made and every rank has staged its state; what follows goes on
// beside other jobs (CheckpointSave). Checkpoints are taken between requests, never inside one: recovery begins at a
// request's first step.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) a save that fails changes nothing but the time of the next automatic one.
//  (2) a disk that hangs holds up other jobs no longer than --worker-stalled-after, however large the checkpoint is: a
//      commit says how far it has read. Then the save is given up, and those that follow fail at once until the disk
//      has answered.
// Errors: docs/errors.md.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/protocol/checkpoint_calls.h"
#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"

namespace stemma::server {

class CheckpointSaves {
 public:
  // `membership` and `checkpoints` outlive it.
  CheckpointSaves(const CoordinatorParts& parts, Membership* membership, CheckpointCalls* checkpoints)
      : p_(parts), membership_(membership), checkpoints_(checkpoints) {}

  void OnSave(const SaveCheckpointEvent& event);
  void OnFolder(const CheckpointFolderEvent& event);
  void OnWritten(const CheckpointWrittenEvent& event);
  void OnSaveStaged(uint32_t rank, const internal::v1::SaveStaged& staged);
  void OnSaveDone(uint32_t rank, const internal::v1::SaveDone& done);
  // Fails a save in which nothing moves, as on a disk that hangs; what was saved before stays.
  void GiveUpWhenStalled();

  // Whether another save can begin.
  bool can_save() const { return !p_.save.exists(); }
  // Adds an automatic save before all jobs that wait, where one is due. REQUIRES: nothing runs.
  void AddWhenDue();
  // Begins the last save of a server that drains, where one is worth it.
  void SaveBeforeLeaving();
  void Start(const std::string& job, const SaveJob& work);

 private:
  bool IsNew() const;  // whether the model has made a step since its newest checkpoint
  absl::Status CheckSave(const v1::SaveCheckpointRequest& request) const;
  void CommitWhenAllEnded();
  void Fail(const CheckpointSave::Order& order, const absl::Status& failure, LogLevel level = LogLevel::kWarning);
  void Record(const CheckpointSave::Order& order, const internal::v1::KnownCheckpoint& known);
  void OnLate(const CheckpointSave::Order& order, const CheckpointWrittenEvent& event);
  void DropSurplus();

  const CoordinatorParts p_;
  Membership* const membership_;
  CheckpointCalls* const checkpoints_;
  uint64_t next_folder_ = 1;
  absl::Time last_save_ = absl::InfiniteFuture();  // its begin, or the first event; infinite: none yet
  uint64_t tried_at_step_ = 0;                     // the model's, at the begin of the last save
  bool saved_before_leaving_ = false;
};

}  // namespace stemma::server
