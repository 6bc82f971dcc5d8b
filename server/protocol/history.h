// What a restart must not forget: the journal's rows, folded, and the rows that this server adds. Each row is an action
// that is executed, and durable, before the actions after it; so what is told to a rank or a client after a row is
// never more than the disk holds.
//
// Thread safety: none; owned by CoordinatorState, whose Outbox its rows go through.
// Invariants:
//  (1) state() is the fold of all rows, those of earlier servers too; that each can be folded is CHECKed.
//  (2) rows are numbered without a gap.
//  (3) a file of the spool is to be removed from the decision on whose row makes it useless, and no sooner.
//  (4) a state that is too large for one row, or for what the disk has left, is not compacted: its rows stay, and the
//      journal grows until it is smaller, or there is room.
//  (5) where requests are kept (durability REPLAY), a step has its decision here before any rank applies it.
#pragma once

#include <cstdint>
#include <string>

#include "server/protocol/coordinator_options.h"
#include "server/protocol/journal_fold.h"
#include "server/protocol/outbox.h"
#include "server/protocol/totals.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

// The journal takes no larger row.
inline constexpr uint64_t kRowBytesMax = 512u << 20;

struct HistoryOptions {
  uint64_t last_row = 0;            // of earlier servers: its number
  JournalBytes journal_bytes = {};  // likewise
  bool replays = false;             // durability REPLAY
  uint64_t requests_kept = 0;
  uint64_t snapshot_after_bytes = 8u << 20;  // of rows, at the least
  uint64_t snapshot_bytes_max = kRowBytesMax;
};

class History {
 public:
  // `state`: what earlier servers knew. `out` outlives it.
  History(const HistoryOptions& options, Outbox* out, internal::v1::JournalState state = {});

  const internal::v1::JournalState& state() const { return state_; }
  bool replays() const { return options_.replays; }
  uint64_t last_row() const { return last_row_; }
  // Returns what the rows of this server count.
  const Totals& totals() const { return totals_; }

  // Null: nothing was decided about this step, or decisions are not kept.
  const internal::v1::KeptStep* FindDecision(const std::string& request_id, uint32_t k) const;
  // The ended request whose steps have to be computed again next, for weights that are at `step`; null: none, an
  // open one comes first, or requests are not kept.
  const internal::v1::KeptRequest* FindBehind(uint64_t step) const;

  void Start(uint64_t epoch);
  void BeginLineage(internal::v1::LineageBegun row);
  void LoadModel(internal::v1::ModelLoaded row);
  void Accept(internal::v1::RequestAccepted row);
  void Commit(internal::v1::StepCommitted row);
  // Settles: the rows before it are moved out of the write-ahead log.
  void Apply(internal::v1::StepApplied row);
  // Settles, too.
  void Skip(internal::v1::StepsSkipped row);
  void Undo(const std::string& request_id, uint32_t k);
  void Finish(internal::v1::RequestFinished row);
  void SaveCheckpoint(internal::v1::KnownCheckpoint checkpoint);
  // Takes one that was found on the disk, and was not saved by this server.
  void TakeCheckpoint(internal::v1::KnownCheckpoint checkpoint);
  void PinCheckpoint(const std::string& name, bool pinned);
  // `damage`: what was found; empty: it is sound again.
  void JudgeCheckpoint(const std::string& name, const std::string& damage);
  // Keeps the digest of the weights in another dtype than that in which they were saved; "", "": they are in that
  // again.
  void NoteLoaded(const std::string& checkpoint, const std::string& dtype, const std::string& weights_digest);
  void DropCheckpoint(const std::string& name);

 private:
  // Adds the row that was filled in, and what it makes useless or due. `counts`: in totals().
  void Add(const internal::v1::JournalRow& row, bool settles = false, bool counts = true);
  void AddSnapshotWhenDue();
  void WarnOfSize();
  void WarnOfRoom(uint64_t free_bytes, uint64_t needed_bytes);

  const HistoryOptions options_;
  Outbox* const out_;
  internal::v1::JournalState state_;
  KnownRequests known_requests_{&state_};
  Totals totals_;
  uint64_t last_row_ = 0;
  uint64_t bytes_since_snapshot_, snapshot_bytes_;
  bool warned_of_size_ = false;
  bool warned_of_room_ = false;  // since the last snapshot
};

}  // namespace stemma::server
