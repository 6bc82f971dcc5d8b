// What happened since this server started, counted by the rows that it added to its journal, what it found lost at its
// start included: totals that only grow, and the step that was made last. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "stemma/internal/v1/journal.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

struct Totals {
  uint64_t updates_accepted = 0;
  std::array<uint64_t, v1::RequestState_ARRAYSIZE> updates_ended = {};  // by the state in which they did
  // By outcome, each once: one that was skipped is skipped again after a loss.
  std::array<uint64_t, v1::StepResult::Outcome_ARRAYSIZE> steps = {};
  uint64_t lineages_lost = 0;  // weights were lost, or a checkpoint was loaded in their place
  uint64_t checkpoints_saved = 0;
  // Sums over the applied steps, of their metrics (docs/metrics.md).
  double prefix_forward_s = 0, suffix_s = 0, prefix_backward_s = 0, apply_s = 0;
  double tokens_logical = 0, tokens_computed = 0, flops = 0;
  v1::StepResult last_step;  // APPLIED; empty: none was

  // Counts a row that was just made. `before`: the fold of the rows before it.
  void Count(const internal::v1::JournalRow& row, const internal::v1::JournalState& before);

 private:
  // `known`: there is a result of it. One that was applied has one result alone.
  void CountStep(const v1::StepResult& step, bool known);
};

}  // namespace stemma::server
