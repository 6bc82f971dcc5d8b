// What context-parallel ranks tell each other of a pass before a step: the log-probs of rollouts that one of them has
// computed and another may compute in the step. Called by ModelEngine on the engine thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "stemma/v1/plan.pb.h"
#include "worker/engine/payload.h"
#include "worker/parallel/communicator.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

// The name of the collective.
inline constexpr char kEntryLogProbsName[] = "entry_log_probs";

// Puts into `entry` what the other ranks of `cp` have computed of the pass; this rank's own is there. All ranks come to
// it with the same plan, whose waves name a rank each. With one rank there is nothing to do. Sends and takes 8 bytes of
// a response's token, as many for each rank as the one with most tokens has. Errors: Unavailable - a rank is gone.
absl::Status ShareEntryLogProbs(Communicator& cp, const std::vector<GroupShape>& groups, const v1::StepPlan& pass,
                                EntryLogProbs& entry);

}  // namespace stemma::worker
