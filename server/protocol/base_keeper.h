// The weights with which the next generation of workers begins, and whether they were read back since they were chosen:
// a checkpoint that is damaged is found before a rank loads it.
//
// Thread safety: none; owned by CoordinatorState, whose Outbox it asks through.
// Invariant: a base that is a checkpoint is ready once every byte of it was read, after it was chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/history.h"
#include "server/protocol/outbox.h"

namespace stemma::server {

class BaseKeeper {
 public:
  // Both outlive it.
  BaseKeeper(Outbox* out, const History* history) : out_(out), history_(history) {}

  const WeightsBase& base() const { return base_; }
  bool ready() const { return ready_; }
  // Null: the model directory.
  const internal::v1::KnownCheckpoint* checkpoint() const {
    return FindCheckpoint(history_->state(), base_.checkpoint);
  }

  // Chooses by what the journal holds now.
  void Choose();
  // Lets no generation begin before another choice: there is nothing to begin with.
  void Withhold();
  // Says what the next generation waits for, where the base is not ready.
  std::string WhatIsAwaited() const;
  // Nullopt: it was not read for this. Else what was found; OK: the base is ready.
  std::optional<absl::Status> OnRead(const CheckpointReadEvent& event);

 private:
  Outbox* const out_;
  const History* const history_;
  WeightsBase base_;
  bool ready_ = true, withheld_ = false;
  uint64_t next_id_ = kFirstId, id_ = 0;

  static constexpr uint64_t kFirstId = uint64_t{1} << 62;  // beyond those of calls
};

}  // namespace stemma::server
