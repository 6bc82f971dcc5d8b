// An update's optimizer steps, each by PREPARE on all ranks, the votes of all, and APPLY on all.
//
// Thread safety: none; owned by CoordinatorState. JobRunner begins an update, the worker's stream brings the answers.
// Invariants:
//  (1) nothing runs between Prepare and the last Applied of a step.
//  (2) a vote or Applied counts only if all its keys are those of its rank in the running attempt.
//  (3) the model's step and weight version change when the last rank's Applied counts, and at no other time here.
//
// Step: Prepare sent (PREPARING) -> Votes -> Apply sent (COMMITTED) -> Applied (APPLIED) -> the next k, or DONE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"

namespace stemma::server {

class StepProtocol {
 public:
  // `membership` outlives it.
  StepProtocol(const CoordinatorParts& parts, Membership* membership) : p_(parts), membership_(membership) {}

  // Begins an update that left the queue, or ends it where the weights are not what it expects or its plan does not
  // fit.
  void Start(UpdateRecord& record);
  void OnVote(uint32_t rank, const internal::v1::Vote& vote);
  void OnApplied(uint32_t rank, const internal::v1::Applied& applied);
  void OnRefused(uint32_t rank, const internal::v1::Refused& refused);
  // Counts a message of another attempt or job: late, and harmless.
  void Ignore(const std::string& what);

 private:
  void PrepareNext(UpdateRecord& record);
  // How many spans the running step asks each rank for.
  uint32_t SpansAsked() const;
  // Breaks with a rank that sends more of them.
  bool SendsTooManySpans(uint32_t rank, int spans);
  void SendPrepare(UpdateRecord& record);
  void Decide(UpdateRecord& record, const internal::v1::Vote& vote);
  void OnNoVote(UpdateRecord& record, const internal::v1::Vote& vote, const std::string& problem);
  void SendApply(UpdateRecord& record, const internal::v1::Vote& vote, v1::StepResult::Outcome outcome);
  void Complete(UpdateRecord& record);
  void Measure(const UpdateRecord& record);
  void AddResult(UpdateRecord& record, v1::StepResult::Outcome outcome, std::optional<double> apply_s);
  void GoOn(UpdateRecord& record);

  const CoordinatorParts p_;
  Membership* const membership_;
  uint64_t ignored_ = 0;
};

// A plan is frozen, so one that was made for a worker that is lost is not made anew behind the client's back. Nothing
// of it was applied (its lineage would be lost), so its id is free: who sends it again gets a plan for the worker there
// is.
absl::Status PlanMisfit(const std::string& problem);

}  // namespace stemma::server
