// Whether the ranks that hold one copy of the model together can go on. Inside of a layer they wait for each other, so
// they begin and stop together: at the begin of a pass, and where a cluster begins. What happens to one of them between
// those points ends the generation. With one rank there is nothing to agree on. Engine thread only.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "worker/engine/engine.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

// Returns `own` where it is an error, else whether the other ranks could. Every rank of `tp` calls it at the same
// point, `point`, but one whose `own` is Unavailable: the generation is over. Errors: Aborted - another rank could not;
// Unavailable - a rank is gone.
absl::Status AgreeInCopy(Communicator& tp, std::string_view point, const absl::Status& own);

// Returns what `status`, of an operation with collectives inside, means to the rank: where it was this rank alone that
// failed (out of memory, an exception), the others wait for it in the middle of a layer, and it is Unavailable.
absl::Status InsideCopy(const Communicator& tp, const absl::Status& status);

// Tells between the operations of a pass whether it is cancelled; the ranks of a copy hear it together.
class CancelPoll {
 public:
  CancelPoll(Communicator* tp, const EngineHooks& hooks) : tp_(tp), hooks_(hooks) {}  // tp null: one rank
  // Called before each operation with the cluster that it is of. With one rank each call asks; several ask where a
  // cluster begins. Errors: Cancelled; Aborted - another rank is cancelled; Unavailable.
  absl::Status Poll(int cluster);

 private:
  Communicator* const tp_;
  const EngineHooks& hooks_;
  int cluster_ = -1;  // of the last call
};

}  // namespace stemma::worker
