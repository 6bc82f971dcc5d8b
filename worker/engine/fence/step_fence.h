// StepFence: which Prepare and Apply messages a worker may act on. Torch-free.
//
// Thread safety: none; owned by the engine thread.
// Invariants:
//  (1) only messages of this epoch, generation and incarnation, for the step after the worker's own, are let through.
//  (2) an Apply is let through once, and only with every key of the last vote.
//  (3) step() grows by one with each applied step, never otherwise.
//
// kIdle -> (OnPrepare) kPreparing -> (OnVote) kVoted -> (OnApplied) kIdle; a newer Prepare or an Abort leaves any
// state. Errors: Aborted - the message belongs to another attempt, step, generation, incarnation or epoch; names both
// values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::worker {

struct StepFencePlace {
  uint64_t epoch = 0;
  uint64_t generation = 0;
  std::string incarnation;
  uint64_t step = 0;  // that the loaded weights are at
};

class StepFence {
 public:
  explicit StepFence(StepFencePlace place) : place_(std::move(place)) {}

  // Accepts a new attempt of the next step. The caller then drops what an earlier attempt left.
  absl::Status CheckPrepare(const internal::v1::StepKey& key) const;
  void OnPrepare(const internal::v1::StepKey& key);
  // A `no` vote counts too: its Apply can only discard.
  void OnVote(const internal::v1::StepKey& key);
  // Accepts the keys of the last vote, once.
  absl::Status CheckApply(const internal::v1::StepKey& key) const;
  void OnApplied(const internal::v1::StepKey& key, bool discard);
  // Returns whether the key is that of the running or voted attempt, whose gradients are then to be dropped.
  bool OnAbort(const internal::v1::StepKey& key);

  uint64_t step() const { return place_.step; }
  // Whether a step was voted on that is to be applied, or dropped, next: its gradients are still wanted.
  bool awaits_apply() const { return state_ == State::kVoted; }

 private:
  enum class State { kIdle, kPreparing, kVoted };

  absl::Status CheckPlace(const internal::v1::StepKey& key) const;

  StepFencePlace place_;
  State state_ = State::kIdle;
  std::optional<internal::v1::StepKey> last_;  // of the last Prepare let through
};

}  // namespace stemma::worker
