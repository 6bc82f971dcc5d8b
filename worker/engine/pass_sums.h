// What a rank's operations of a pass add up to. Filled by the pass runner, read by ModelEngine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/loss/wave_loss.h"
#include "worker/memory/residency/residency.h"
#include "worker/model/expert_load.h"
#include "worker/schedule/program.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

// Returns the phase that an operation is of, as heartbeats name it.
const char* PhaseName(OperationKind kind);

struct PassSums {
  LossSums loss;
  int64_t tokens_computed = 0;  // rows that layers ran
  int64_t tokens_logical = 0;   // rows that a dense schedule would run
  int64_t waves = 0;
  double prefix_forward_s = 0, suffix_s = 0, prefix_backward_s = 0;
  // Highest device bytes in each phase, above those at the start of the pass.
  int64_t prefix_forward_bytes = 0, suffix_bytes = 0, prefix_backward_bytes = 0;
  // In exchanges of split groups, waiting for the other ranks included: in none of the phases' seconds. K/V and gK/gV
  // that this rank sent.
  double split_s = 0;
  int64_t split_bytes = 0;
  ResidencyStats offload;  // sums over the clusters; peaks are their highest
  ExpertLoad expert_load;  // of the layers that this rank counts; empty: none

  // Adds the rows of a wave that this rank has run; what a dense schedule would run of a rollout whose rows are cut is
  // counted by the rank that has the first of them.
  void AddTokens(const std::vector<MemberRows>& rows, const std::vector<GroupShape>& groups);
  // Adds what an operation took.
  void AddSeconds(OperationKind kind, double seconds);
  // Keeps the highest.
  void AddPeak(OperationKind kind, int64_t peak_bytes);
  void AddOffload(const ResidencyStats& stats);
  int64_t peak_bytes() const { return std::max({prefix_forward_bytes, suffix_bytes, prefix_backward_bytes}); }
};

}  // namespace stemma::worker
