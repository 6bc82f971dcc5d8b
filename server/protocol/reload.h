// Kept requests that are read back, one at a time: an open one that an earlier server accepted, or an ended one whose
// steps are computed again. A plan that was made for other ranks, or more memory than they have, is made anew.
//
// Thread safety: none; owned by CoordinatorState, whose Outbox it asks through.
// Invariants:
//  (1) at most one request is held or on its way.
//  (2) what is taken has a plan for the ranks that were named when it was taken.
//  (3) its steps are normalized with the numbers that were kept, whatever its plan is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/protocol/arrivals.h"
#include "server/protocol/outbox.h"

namespace stemma::server {

class Reload {
 public:
  // `out` outlives it.
  explicit Reload(Outbox* out) : out_(out) {}

  // Takes the request if it is there. Nullopt: it is on its way, and the event that brings it says when to ask again.
  // Errors: DataLoss - it cannot be read back; what planning it leads to. Asked again, it is read again.
  std::optional<absl::StatusOr<LoadedRequest>> Take(const internal::v1::SpoolFile& file, const ModelConfig& model,
                                                    const PlanInputs& inputs);
  void OnLoaded(const LoadedEvent& event);
  // False: the plan is none of its own.
  bool OnPlanned(const PlannedEvent& event);

 private:
  enum class State { kNone, kReading, kPlanning, kHere };

  void Read(const internal::v1::SpoolFile& file);
  void Plan(const PlanInputs& inputs);

  Outbox* const out_;
  State state_ = State::kNone;
  std::string name_;  // of the file
  absl::StatusOr<LoadedRequest> loaded_ = absl::UnknownError("nothing was read");
  PlanId next_id_ = kFirstId, id_ = 0;

  static constexpr PlanId kFirstId = PlanId{1} << 62;  // beyond those of arrivals
};

}  // namespace stemma::server
