// What a pass says to sharded parameters (worker/model/sharded_units.h) between its operations. With whole ones nothing
// is said. Used by the pass runner; engine thread only.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "stemma/v1/plan.pb.h"
#include "worker/model/sharded_units.h"
#include "worker/model/weights.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

class PassVisits {
 public:
  // `units`: of `weights`; null: these are whole. All outlive it.
  PassVisits(ShardedUnits* units, const Weights& weights) : units_(units), weights_(weights) {}

  bool sharded() const { return units_ != nullptr; }
  // REQUIRES: CheckParameterSweeps accepts the plan. The program outlives this.
  void Begin(std::span<const Operation> program, const v1::StepPlan& plan, const RankSizes& sizes, bool forward_only);
  void BeginOperation(const Operation& operation) const;
  // Returns what the failure of an operation that has begun means: others wait for this rank in the middle of it.
  absl::Status InsideOperation(const absl::Status& status) const;
  // Called where every operation was run or left out. Throws CollectiveError.
  void End() const;
  // Ends a pass that has failed: with all other ranks, or, Unavailable, without them.
  void Stop(const absl::Status& status) const;

 private:
  ShardedUnits* const units_;
  const Weights& weights_;
  std::span<const Operation> program_view_;  // of the program that runs, whose addresses tell its operations apart
};

}  // namespace stemma::worker
