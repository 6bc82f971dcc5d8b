// Which operations of a rank's program are the last of their cluster: where a hot set ends in a pass without backward,
// and where its tape may start to come back; and in which last one a rank may call other axes. Pure; used by the pass
// runner.
#pragma once

#include <map>
#include <span>

#include "stemma/v1/plan.pb.h"
#include "worker/schedule/operation.h"

namespace stemma::worker {

class LastOperations {
 public:
  LastOperations() = default;
  // The program outlives this.
  explicit LastOperations(std::span<const Operation> program);

  bool IsLast(const Operation& operation) const { return Is(operation, last_); }
  // Tells whether no wave of its cluster that this copy of the model runs begins after this operation.
  bool IsLastForward(const Operation& operation) const { return Is(operation, last_forward_); }

 private:
  using ByCluster = std::map<int, const Operation*>;
  static bool Is(const Operation& operation, const ByCluster& last) {
    const auto found = last.find(operation.cluster);
    return found != last.end() && found->second == &operation;
  }

  ByCluster last_, last_forward_;
};

// Tells whether the collectives of other axes may begin in the last operation of a rank's program. They may where all
// context-parallel ranks run it together, or where the copy has no more exchanges of rows: else another rank would
// begin such a collective behind exchanges that this one makes behind it, and on devices each would wait for the other.
bool OtherAxesMayBeginIn(const Operation& last, const v1::StepPlan& plan, int cp_ranks);

}  // namespace stemma::worker
