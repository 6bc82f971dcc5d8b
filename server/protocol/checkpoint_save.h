// The save that runs: which ranks have staged their state, which have written it, and what becomes of it. Its first
// half, the staging, is a running job; the rest goes on beside other jobs.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) at most one save runs. (2) it is written only when every rank that staged has said how its writing ended: nobody
//  writes into a folder that is renamed or removed. (3) a save whose writing stands still is given up, so that the next
//  one need not wait for it; its folder is kept until its ranks have ended, or are gone.
//
// None -> Begin -> (staged of each rank) -> (done of each that could stage) -> Commit -> End; any -> End.
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
  bool Writes(const std::string& name) const { return exists() && order_.manifest.name() == name; }
  bool commits() const { return phase_ == Phase::kCommitting; }
  // REQUIRES: exists.
  const Order& order() const { return order_; }
  uint64_t id() const { return id_; }  // of its commit

  // `watch`: of the writing. REQUIRES: none runs.
  void Begin(Order order, uint32_t num_ranks, JobWatch watch);
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
  // Returns what is to be written. REQUIRES: all_ended without failure.
  CommitCheckpointAction Commit();
  // Forgets it; returns what it was.
  Order End();

  // Counts time, where all ranks have staged and some write.
  void Pass(absl::Duration counted);
  // Returns "", or why it is to be given up: for how long no rank ended.
  std::string Problem() const;
  // Forgets it but for its folder.
  Order GiveUp();
  // Takes the end of a rank's writing in a save that was given up; returns its folder if that was the last one.
  std::optional<std::string> AddLateDone(const std::string& job, uint32_t rank);
  // Forgets those that were given up, whose ranks are gone; returns their folders.
  std::vector<std::string> TakeGivenUp();

 private:
  enum class Phase { kNone, kRanks, kCommitting };
  struct Rank {
    bool staged = false, done = false;  // done: nothing more comes
    absl::Status failure;
    std::string weights_digest;
  };

  struct GivenUp {
    std::string job, folder;
    std::set<uint32_t> writers;
  };

  bool writes() const;

  Phase phase_ = Phase::kNone;
  Order order_;
  std::vector<Rank> ranks_;
  std::optional<JobWatch> watch_;
  std::vector<GivenUp> given_up_;
  uint64_t id_ = 0;
};

}  // namespace stemma::server
