// The passes before a step: log-probs that its losses read, with the weights that each names. Called by ModelEngine on
// the engine thread.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/plan.pb.h"
#include "worker/engine/copy_agreement.h"
#include "worker/engine/live_wave.h"
#include "worker/engine/payload.h"
#include "worker/parallel/communicator.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

// The name of the collective.
inline constexpr char kEntryLogProbsName[] = "entry_log_probs";

// Runs a forward-only pass of the payload with these weights. `before`: where it is not OK, the pass does not begin.
using RunEntryPass = std::function<absl::Status(absl::Status before, const internal::v1::PassWeights& weights,
                                                const MemberResult& results)>;

// The ranks that share a pass.
struct EntryRanks {
  Communicator& cp;
  const CopyRanks& together;
  bool have_results;  // of the last pipeline stage, which alone has log-probs
};

// Puts the log-probs of each pass that `prepare` asks for into the payload, with the seconds that they took; none asked
// for: none. All ranks come to it with the same plan, and walk its exchanges whatever happens. Errors: of `run`;
// Unavailable - a rank is gone.
absl::Status ComputeEntryLogProbs(const internal::v1::Prepare& prepare, const EntryRanks& ranks,
                                  const RunEntryPass& run, Payload& payload);

// Puts into `entry` what the other ranks of `cp` have computed of the pass; this rank's own is there. All ranks come to
// it with the same plan, whose waves name a rank each. With one rank there is nothing to do. Sends and takes 8 bytes of
// a response's token, as many for each rank as the one with most tokens has. Errors: Unavailable - a rank is gone.
absl::Status ShareEntryLogProbs(Communicator& cp, const std::vector<GroupShape>& groups, const v1::StepPlan& pass,
                                EntryLogProbs& entry);

}  // namespace stemma::worker
