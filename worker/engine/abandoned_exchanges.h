// What a rank still owes others when its pass has stopped: the exchanges of groups that copies of the model share. It
// says in each that it has given up, or takes what comes, so that no other rank waits for it. Called by the pass runner
// on the engine thread.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "stemma/v1/plan.pb.h"
#include "worker/engine/split_exchange.h"
#include "worker/parallel/mesh_ranks.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

struct StoppedPass {
  SplitExchange& split;
  const v1::StepPlan& plan;
  const RankSizes& sizes;
  const CopyRanks& copy;
};

// Walks the exchanges among `rest`, in their order, because of `cause`, which is not OK. Returns `cause`, or
// Unavailable: a rank is gone, or sends what cannot be taken.
absl::Status AbandonExchanges(const StoppedPass& pass, std::span<const Operation> rest, const absl::Status& cause);

}  // namespace stemma::worker
