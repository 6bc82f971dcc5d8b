// An update's optimizer steps, each by PREPARE on all ranks, the votes of all, the decision, and APPLY on all.
//
// Where requests are kept (durability REPLAY) a decision is in the journal before any rank is told, and stands from
// then on: a step that is computed again after a loss is applied as was decided, with the clip factor of then.
//
// Thread safety: none; owned by CoordinatorState. JobRunner begins an update, the worker's stream brings the answers.
// Invariants:
//  (1) nothing runs between Prepare and the last Applied of a step.
//  (2) a vote or Applied counts only if all its keys are those of its rank in the running attempt.
//  (3) the model's step and weight version change when the last rank's Applied counts, and at no other time here; not
//      for a step that was applied before.
//  (4) all ranks have the same weights after a step, those that the journal knows; else nothing goes on.
//
// Step: Prepare sent (PREPARING) -> Votes -> row COMMITTED, Apply sent (COMMITTED) -> Applied, row APPLIED (APPLIED) ->
// the next k, or DONE. Steps in which nothing has a gradient are skipped without a rank, by one row SKIPPED.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"
#include "server/protocol/step_messages.h"

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
  // A step that was decided cannot be done by these workers: the next ones try.
  void FailAgain(const std::string& why);

 private:
  void PrepareNext(UpdateRecord& record);
  void SkipEmpty(UpdateRecord& record);
  // How many spans the running step asks each rank for.
  uint32_t SpansAsked() const;
  // Breaks with a rank that sends more of them.
  bool SendsTooManySpans(uint32_t rank, int spans);
  void SendPrepare(UpdateRecord& record);
  void Decide(UpdateRecord& record, const internal::v1::Vote& vote);
  void OnNoVote(UpdateRecord& record, const internal::v1::Vote& vote, const std::string& problem);
  void EndRefusedPrepare(SessionId session, const std::string& why);
  // Decides once: what the journal knows of the step is carried out as it is.
  void Commit(UpdateRecord& record, const internal::v1::Vote& vote, v1::StepResult::Outcome outcome);
  void Repeat(UpdateRecord& record, const internal::v1::Vote& vote, const internal::v1::StepCommitted& decided);
  void SendApply(UpdateRecord& record, const internal::v1::Vote& vote, const StepDecision& decision);
  void Complete(UpdateRecord& record);
  void CompleteAgain(UpdateRecord& record, const internal::v1::KeptStep& before, const std::string& digest);
  void CompleteFirst(UpdateRecord& record, const std::string& digest);
  // The digest that all ranks tell; nullopt: they differ, and their generation is given up.
  std::optional<std::string> DigestOfRanks();
  void GoOnAgain(UpdateRecord& record);
  void Measure(const UpdateRecord& record);
  void AddResult(UpdateRecord& record, v1::StepResult::Outcome outcome, double apply_s, const std::string& digest);
  void GoOn(UpdateRecord& record);

  const CoordinatorParts p_;
  Membership* const membership_;
  uint64_t ignored_ = 0;
  uint32_t failures_again_ = 0;  // votes against what was decided before, since a step was completed
};

// A plan is frozen, so one that was made for a worker that is lost is not made anew behind the client's back. Nothing
// of it was applied (its lineage would be lost), so its id is free: who sends it again gets a plan for the worker there
// is.
absl::Status PlanMisfit(const std::string& problem);

}  // namespace stemma::server
