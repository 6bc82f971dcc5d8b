// The save that runs: its folder, which ranks have staged their state, which have written it, and what becomes of it.
// Its first half, up to the end of staging, is a running job; the rest goes on beside other jobs.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) at most one save runs.
//  (2) it is written only when every rank that staged has said how its writing ended: nobody writes into a folder that
//      is renamed or removed.
//  (3) a save in which nothing moves is given up, so that nothing waits for it: one whose writing stands still, whose
//      folder is kept until its ranks have ended, or are gone; and one of which the disk does not make the folder, or
//      does not end the commit. Of the second kind there is one at most: until the disk has answered none is begun.
//
// None -> Begin -> FolderMade -> (staged of each rank) -> (done of each that could stage) -> Commit -> End; any -> End.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/protocol/events.h"
#include "server/protocol/job_watch.h"
#include "stemma/internal/v1/checkpoint.pb.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

class CheckpointSave {
 public:
  struct Order {
    std::string job;     // under which the ranks know it
    std::string folder;  // that they write into
    CallId call = 0;     // that waits for it, once it is staged; 0: none
    std::string client_state;
    internal::v1::CheckpointManifest manifest;  // without parts
  };

  bool exists() const { return phase_ != Phase::kNone; }
  bool Is(const std::string& job) const { return exists() && order_.job == job; }
  // Whether a checkpoint of this name may still come of a save, one that was given up too.
  bool Writes(const std::string& name) const;
  bool awaits_folder() const { return phase_ == Phase::kFolder; }
  // Whether all ranks have staged, and some write.
  bool writes() const;
  bool commits() const { return phase_ == Phase::kCommitting; }
  // REQUIRES: exists.
  const Order& order() const { return order_; }
  uint64_t id() const { return id_; }  // of its folder and of its commit

  // `predicted`: of writing it. `stalled_after`: the floor of its watches. REQUIRES: none runs, and none is late.
  void Begin(Order order, uint32_t num_ranks, const JobSeconds& predicted, absl::Duration stalled_after);
  void FolderMade();  // REQUIRES: awaits_folder
  void SetCall(CallId call) { order_.call = call; }
  bool AwaitsStaged(uint32_t rank) const;
  bool AwaitsDone(uint32_t rank) const;
  // Keep what one rank said. REQUIRES: it is awaited.
  void AddStaged(uint32_t rank, const absl::Status& failure);
  void AddDone(uint32_t rank, const internal::v1::SaveDone& done, const absl::Status& failure);
  // Whether no rank is waited for any more.
  bool all_ended() const;
  // The first failure that is a rank's own; DIVERGED where the ranks hold other weights. REQUIRES: all_ended.
  absl::Status failure() const;
  // Takes that a checkpoint was read on: this one, or one whose reading the commit waits for.
  void DiskMoved() {
    if (commits()) watch_->Moved();
  }
  // Returns what is to be written. REQUIRES: all_ended without failure.
  CommitCheckpointAction Commit();
  // Forgets it; returns what it was.
  Order End();

  // Lets the time since the last event pass. It counts while the disk makes the folder or commits, or while ranks
  // write.
  void Pass(absl::Time now, absl::Time handled_at = absl::InfinitePast());
  absl::Time NextLook() const { return next_look_; }  // infinite: nothing is watched
  // Begins the next look where one was due.
  void Look(absl::Time now);
  // Returns "", or why it is to be given up: for how long nothing has ended.
  std::string Problem() const;
  // Forgets it but for its folder, and for what the disk still does for it. REQUIRES: exists, and none is late.
  Order GiveUp();
  // Whether the disk has not ended what it was to do for one that was given up.
  bool is_late() const { return late_.has_value(); }
  const Order& late() const { return late_->order; }  // REQUIRES: is_late
  // Takes that end, by its id; nullopt: it is of another save.
  std::optional<Order> TakeLate(uint64_t id);
  // Takes the end of a rank's writing in a save that was given up; returns its folder if that was the last one.
  std::optional<std::string> AddLateDone(const std::string& job, uint32_t rank);
  // Counts a save that its caller is told has failed, and saves that have.
  void CountFailed() { ++num_failed_; }
  uint64_t num_failed() const { return num_failed_; }
  // Forgets those that were given up, whose ranks are gone; returns their folders.
  std::vector<std::string> TakeGivenUp();

 private:
  enum class Phase { kNone, kFolder, kRanks, kCommitting };
  struct Rank {
    bool staged = false, done = false;  // done: nothing more comes
    absl::Status failure;
    std::string weights_digest;
  };

  struct GivenUp {
    std::string job, folder;
    std::set<uint32_t> writers;
  };
  struct Late {
    uint64_t id = 0;
    bool commits = false;
    Order order;
  };

  bool watched() const { return awaits_folder() || writes() || commits(); }
  void Watch(const std::string& what, const JobSeconds& predicted);

  Phase phase_ = Phase::kNone;
  Order order_;
  std::vector<Rank> ranks_;
  JobSeconds predicted_;
  absl::Duration stalled_after_;
  std::optional<JobWatch> watch_;  // of the phase
  CountedTime counted_;
  absl::Time passed_ = absl::InfinitePast(), next_look_ = absl::InfiniteFuture();
  std::vector<GivenUp> given_up_;
  std::optional<Late> late_;
  uint64_t id_ = 0;
  uint64_t num_failed_ = 0;
};

}  // namespace stemma::server
