// Checkpoints as clients and operators see them: saving, on demand and automatically, loading, listing, reading back,
// pinning and deleting.
//
// A save is a job in the queue until every rank has staged its state; what follows goes on beside other jobs
// (CheckpointSave). A load is a job too, which changes which weights there are at its turn (Membership::GoBack).
// Checkpoints are taken between requests, never inside one: recovery begins at a request's first step.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) what is removed is neither the base of recovery nor the checkpoint before it, unless a client asks for the
//  second. (2) a save that fails changes nothing but the time of the next automatic one.
// Errors: docs/errors.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"

namespace stemma::server {

class CheckpointCalls {
 public:
  // `membership` outlives it.
  CheckpointCalls(const CoordinatorParts& parts, Membership* membership) : p_(parts), membership_(membership) {}

  void OnSave(const SaveCheckpointEvent& event);
  void OnLoad(const LoadCheckpointEvent& event);
  void OnList(const ListCheckpointsEvent& event);
  void OnVerify(const VerifyCheckpointEvent& event);
  void OnPin(const PinCheckpointEvent& event);
  void OnDelete(const DeleteCheckpointEvent& event);
  void OnWritten(const CheckpointWrittenEvent& event);
  void OnRead(const CheckpointReadEvent& event);
  // Lets go of what a client that left had asked for: its checkpoint is not loaded.
  void OnGone(CallId call);
  void OnSaveStaged(uint32_t rank, const internal::v1::SaveStaged& staged);
  void OnSaveDone(uint32_t rank, const internal::v1::SaveDone& done);
  // Fails a save whose ranks have stopped writing, as on a disk that hangs; what was saved before stays.
  void GiveUpWhenStalled();

  // Whether another save can begin.
  bool can_save() const { return !p_.save.exists(); }
  // Adds an automatic save before all jobs that wait, where one is due. REQUIRES: nothing runs.
  void AddWhenDue();
  // Begins the last save of a server that drains, where one is worth it.
  void SaveBeforeLeaving();
  void Start(const std::string& job, const SaveJob& work);
  void StartLoad(const std::string& job);

 private:
  enum class Purpose { kVerify, kLoad };
  struct Reading {
    Purpose purpose = Purpose::kVerify;
    CallId call = 0;  // 0: it left
    std::string name;
    std::optional<std::string> expected_lineage = {};
  };

  bool IsUsed(const std::string& name) const;
  bool IsTaken(const std::string& name) const;  // no checkpoint that is saved can have it
  bool IsNew() const;                           // whether the model has made a step since its newest checkpoint
  absl::Status CheckSave(const v1::SaveCheckpointRequest& request) const;
  // Null: the call is answered.
  const internal::v1::KnownCheckpoint* Find(CallId call, const std::string& name) const;
  void Read(Reading reading, const internal::v1::KnownCheckpoint& checkpoint);
  // Checks the lineage from which a load was to go back. A load that was made already, whose answer was lost, passes.
  absl::Status CheckLoad(const std::optional<std::string>& expected, const internal::v1::KnownCheckpoint& known) const;
  void EndRead(const Reading& reading, const absl::StatusOr<std::string>& client_state);
  void Load(CallId call, const LoadJob& work);
  void CommitWhenAllEnded();
  void Fail(const CheckpointSave::Order& order, const absl::Status& failure);
  void DropSurplus();
  v1::Checkpoint Describe(const internal::v1::KnownCheckpoint& checkpoint) const;

  const CoordinatorParts p_;
  Membership* const membership_;
  std::map<uint64_t, Reading> readings_;  // by id
  uint64_t next_reading_ = 1, next_folder_ = 1;
  absl::Time last_save_ = absl::InfiniteFuture();  // its begin, or the first event; infinite: none yet
  uint64_t tried_at_step_ = 0;                     // the model's, at the begin of the last save
  bool saved_before_leaving_ = false;
};

}  // namespace stemma::server
