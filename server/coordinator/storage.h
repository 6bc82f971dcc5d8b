// The journal, the spool and the checkpoints of one data directory, and what earlier servers left in them.
//
// Append: the coordinator thread. CheckRoom, Keep and Load: a planner's thread, beside it. Remove, FreeBytes and
// StopBy: any. checkpoints(): the checkpoints' threads. Invariants:
//  (1) what Append was given is on the disk when it returns. Where that fails the process ends: nobody may act on
//      what is not kept, and a write that failed is not repeated.
//  (2) files of the spool that no row names are removed by Open; one that cannot be is logged, and stays.
//  (3) room that files give up which are being removed, or that were removed meanwhile, is waited for and looked for
//      again before a request is refused for it; not that of a file whose removal hangs (SpoolRemovals).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/held_folder.h"
#include "server/coordinator/spool_removals.h"
#include "server/coordinator/watched_thread.h"
#include "server/protocol/coordinator_options.h"
#include "server/protocol/events.h"
#include "server/store/checkpoint_store.h"
#include "server/store/journal.h"
#include "server/store/spool.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

class Storage {
 public:
  // Takes the journal's lock, then removes what a server before left unfinished. Errors: DataLoss - damage, which names
  // the file and says what to do; FailedPrecondition - the journal is missing or older than the spool, of a newer
  // version, or another server's; what opening files leads to.
  static absl::StatusOr<std::unique_ptr<Storage>> Open(const std::string& data_directory, uint64_t requests_kept);

  const internal::v1::JournalState& state() const { return state_; }  // as Open found it, until it is taken
  internal::v1::JournalState TakeState() { return std::exchange(state_, {}); }
  JournalBytes journal_bytes() const { return {snapshot_bytes_, row_bytes_}; }  // likewise
  // The checkpoints that Open found, in the order of their steps.
  const std::vector<internal::v1::KnownCheckpoint>& found() const { return found_; }
  // The other folders beside them, which no checkpoint can be renamed to.
  const std::vector<std::string>& other_folders() const { return other_folders_; }
  // The folders that Open left out of the checkpoints.
  const std::vector<std::string>& left_out() const { return left_out_; }
  uint64_t last_row() const { return last_row_; }

  const CheckpointStore& checkpoints() const { return checkpoints_; }
  // Tells whether what is put into --data by its path, or removed there, is put into this directory. Errors: INTERNAL
  // (HeldFolder). Any thread.
  absl::Status CheckPlace() const { return held_.Check(); }
  void Append(const JournalAction& action);
  // Removes a spooled request that is done with, by a thread beside the caller's.
  void Remove(std::string spool_name) { removals_.Add(std::move(spool_name)); }
  // Tells that thread to end: what is left goes at the next start.
  void Quit() { removals_.Quit(); }
  // Quits, and waits for it until the deadline. Returns "", or what the disk has not ended. Idempotent.
  std::string StopBy(StopDeadline deadline) { return removals_.StopBy(deadline); }
  // Returns what the journal's disk has left; nullopt: that is not known. Hangs where the disk does.
  std::optional<uint64_t> FreeBytes() const;
  // Whether a request that no file keeps leaves room for the rows of all that are accepted, and for another snapshot.
  // Errors: DISK_FULL.
  absl::Status CheckRoom();
  // Keeps the request with its plan for so many ranks. Errors: CheckRoom's, and what writing files leads to.
  absl::StatusOr<internal::v1::SpoolFile> Keep(const std::string& name, const TrainingRequest& request,
                                               const RequestPlan& plan, const v1::Mesh& mesh);
  // Refuses where a request that weights at `step` lack, as a whole or in part, was kept by another version of this
  // program: FailedPrecondition, which names its file.
  absl::Status CheckKeptVersions(uint64_t step) const;
  // Errors: DataLoss - the file is not the one that was kept.
  absl::StatusOr<LoadedRequest> Load(const internal::v1::SpoolFile& file) const;

 private:
  Storage(std::string data_directory, HeldFolder held, Journal journal, Spool spool, CheckpointStore checkpoints)
      : data_directory_(std::move(data_directory)),
        held_(std::move(held)),
        journal_(std::move(journal)),
        spool_(std::move(spool)),
        checkpoints_(std::move(checkpoints)) {}

  absl::Status FoldRows(uint64_t requests_kept);
  absl::Status FindCheckpoints();
  absl::Status CheckAnyFound() const;
  absl::Status CheckSpoolsAge() const;
  absl::Status SweepSpool() const;  // removes what no row names
  absl::Status Write(const JournalAction& action);
  // Do what CheckRoom and Keep do, without waiting for removals.
  absl::Status LookForRoom(uint64_t file_bytes = 0) const;
  absl::StatusOr<internal::v1::SpoolFile> KeepNow(const std::string& name, const TrainingRequest& request,
                                                  const RequestPlan& plan, const v1::Mesh& mesh) const;

  const std::string data_directory_;
  const HeldFolder held_;  // that one
  Journal journal_;
  const Spool spool_;
  const CheckpointStore checkpoints_;
  std::vector<internal::v1::KnownCheckpoint> found_;
  std::vector<std::string> other_folders_;
  std::vector<std::string> left_out_;
  internal::v1::JournalState state_;
  uint64_t last_row_ = 0;
  std::atomic<uint64_t> snapshot_bytes_ = 0;  // of the last one in the journal
  uint64_t row_bytes_ = 0;                    // of the rows that Open found behind it
  SpoolRemovals removals_{&spool_};           // the last member: its thread uses the spool
};

}  // namespace stemma::server
