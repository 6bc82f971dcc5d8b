// Checkpoints as clients and operators see them: loading, listing, reading back, pinning and deleting; CheckpointSaves
// makes them. A load is a job in the queue, which changes which weights there are at its turn (Membership::GoBack).
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) what is removed is never the base of recovery, and the checkpoint before it only where a client asks for that.
//  (2) who deletes a checkpoint is answered once its name is free on the disk; the journal has dropped it before. Where
//      the disk refuses, the name stays taken, and whoever deletes it again, or the next save, asks the disk again.
// Errors: docs/errors.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"

namespace stemma::server {

class CheckpointCalls {
 public:
  // `membership` outlives it.
  CheckpointCalls(const CoordinatorParts& parts, Membership* membership) : p_(parts), membership_(membership) {}

  void OnLoad(const LoadCheckpointEvent& event);
  void OnList(const ListCheckpointsEvent& event);
  void OnVerify(const VerifyCheckpointEvent& event);
  void OnPin(const PinCheckpointEvent& event);
  void OnDelete(const DeleteCheckpointEvent& event);
  void OnRead(const CheckpointReadEvent& event);
  void OnRemoved(const CheckpointRemovedEvent& event);
  // Lets go of what a client that left had asked for: its checkpoint is not loaded.
  void OnGone(CallId call);
  void StartLoad(const std::string& job);

  bool IsUsed(const std::string& name) const;
  bool IsTaken(const std::string& name) const;  // no checkpoint that is saved can have it
  v1::Checkpoint Describe(const internal::v1::KnownCheckpoint& checkpoint) const;
  // Drops a checkpoint. `call`: is answered when that is done; 0: none. REQUIRES: the journal knows it, and it is not
  // used.
  void Remove(const std::string& name, CallId call);
  // Asks the disk again for all removals that it has refused.
  void RemoveAgain();

 private:
  // False: the disk has no room for a row; the call is answered by DISK_FULL.
  bool HasRoom(CallId call);
  enum class Purpose { kVerify, kLoad };
  struct Reading {
    Purpose purpose = Purpose::kVerify;
    CallId call = 0;  // 0: it left
    std::string name;
    std::optional<std::string> expected_lineage = {};
  };
  struct Removal {
    bool under_way = false;     // else the disk has refused it
    std::vector<CallId> calls;  // that wait for its end
  };

  // Null: the call is answered.
  const internal::v1::KnownCheckpoint* Find(CallId call, const std::string& name) const;
  void Read(Reading reading, const internal::v1::KnownCheckpoint& checkpoint);
  // Checks the lineage from which a load was to go back. A load that was made already, whose answer was lost, passes.
  absl::Status CheckLoad(const std::optional<std::string>& expected, const internal::v1::KnownCheckpoint& known) const;
  void EndRead(const Reading& reading, const absl::StatusOr<std::string>& client_state);
  void Load(CallId call, const LoadJob& work);
  // Asks the disk for it, unless it was asked and has not answered.
  void AskDisk(const std::string& name, Removal& removal);

  const CoordinatorParts p_;
  Membership* const membership_;
  std::map<uint64_t, Reading> readings_;  // by id
  uint64_t next_reading_ = 1;
  std::map<std::string, Removal> removing_;  // by name, those that are dropped and still on the disk, or may be
};

}  // namespace stemma::server
