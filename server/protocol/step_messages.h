// The messages of one optimizer step: what Prepare and Apply carry, and what a vote leads to. Pure. Used by the
// coordinator, and by tests that run the engine without one: there is no second way to build a step.
#pragma once

#include <cstdint>
#include <vector>

#include "server/protocol/request_plan.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Returns whether step k runs the entry log-prob pass: only the first one may.
bool RunsEntryPass(const RequestPlan& plan, uint32_t k);

// Returns false for a step that the server can skip alone: nothing in its mini-batch has a gradient, and no entry
// log-prob pass is due.
bool StepNeedsWorker(const RequestPlan& plan, uint32_t k);

// Fills the Prepare of the step that `key` names: key.k() is the step's index in its request, and denominator and
// prompt-mean weights are those of that step's mini-batch. The entry log-prob pass goes with the first step. Where its
// weights are read from, and what each rank is to record of the step, is the caller's.
internal::v1::Prepare MakePrepare(const internal::v1::StepKey& key, const v1::UpdateHeader& header,
                                  const RequestPlan& plan);

// Returns what the gradients are multiplied by: min(1, max_grad_norm / (norm + 1e-6)), as torch's clip_grad_norm_
// does; 1 where max_grad_norm is 0. The norm may be large: its square was checked to be finite.
double ClipFactor(const v1::AdamParams& adam, double grad_norm_squared);

// What is decided about a step, by the vote of all ranks.
struct StepDecision {
  v1::StepResult::Outcome outcome = v1::StepResult::APPLIED;
  double clip = 1;  // of an APPLIED step
};

StepDecision DecideStep(const v1::AdamParams& adam, const internal::v1::Vote& vote, v1::StepResult::Outcome outcome);

// Fills the Apply of a step: APPLIED carries the clip factor and the predicted seconds, every other outcome discards
// the gradients.
internal::v1::Apply MakeApply(const internal::v1::StepKey& key, const v1::AdamParams& adam, const RequestPlan& plan,
                              const StepDecision& decision);

// Returns the report of step k. The report of the entry log-prob pass, if there is one, stands before those of the
// steps.
const v1::StepReport& StepReportOf(const RequestPlan& plan, uint32_t k);

}  // namespace stemma::server
