// Which ends of a gang's workers are one loss. A pure decision: no clock, no process.
//
// One lost worker ends its generation: the server closes the streams of all others, and each of them exits. A lost
// server ends all of them. Those ends follow the loss; they are no failures of their own.
//
// Invariant: a counted loss has at most one follower of each other worker, so workers that fail again and again are
// counted again and again.
#pragma once

#include <cstddef>
#include <vector>

namespace stemma::cli {

class GangLosses {
 public:
  explicit GangLosses(size_t num_workers) : may_follow_(num_workers, false) {}

  // A process that starts belongs to the next generation: its end follows no earlier loss.
  void Started(size_t worker) { may_follow_[worker] = false; }

  // All workers serve: whatever ends from now on is another loss.
  void AllServe() { may_follow_.assign(may_follow_.size(), false); }

  // The server ended: the workers' sessions end with it, and so do they.
  void ServerEnded() { may_follow_.assign(may_follow_.size(), true); }

  // A worker ended. Returns whether this is a loss to count; false: it follows one that is counted.
  bool Ended(size_t worker) {
    if (may_follow_[worker]) {
      may_follow_[worker] = false;
      return false;
    }
    may_follow_.assign(may_follow_.size(), true);
    may_follow_[worker] = false;
    return true;
  }

 private:
  std::vector<bool> may_follow_;  // runs since before the last counted loss
};

}  // namespace stemma::cli
