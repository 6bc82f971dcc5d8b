// Whether the ranks that hold one copy of the model together can go on; where parameters are sharded, the ranks of all
// copies. Inside of a layer they wait for each other, so they begin and stop together: at the begin of a pass, and
// where a cluster begins. What happens to one of them between those points ends the generation. With one rank there is
// nothing to agree on. Engine thread only.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "worker/engine/engine.h"
#include "worker/model/stage_links.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

// The name of the agreement in which context-parallel ranks wait for each other's waves.
inline constexpr char kWavesEndedName[] = "waves_ended";

// Returns `own` where it is an error, else whether the other ranks could. Every rank of the copy calls it at the same
// point, `point`, but one whose `own` is Unavailable: the generation is over. Errors: Aborted - another rank could not;
// Unavailable - a rank is gone.
absl::Status AgreeInCopy(const CopyRanks& copy, std::string_view point, const absl::Status& own);

// Returns what `status`, of an operation with collectives inside, means to the rank: where it was this rank alone that
// failed (out of memory, an exception), the others wait for it in the middle of a layer, and it is Unavailable.
absl::Status InsideCopy(const CopyRanks& copy, const absl::Status& status);

// Returns what the checks before a pass come to. `agrees`: the ranks of the copy then tell each other; none has begun
// anything in which others wait, so out of memory is this rank's answer, and the others' Aborted. Errors:
// AgreeInCopy's.
absl::Status EndChecks(const CopyRanks& copy, bool agrees, const absl::Status& own);

// Tells between the operations of a pass whether it is cancelled; the ranks of a copy hear it together. Of a pipeline's
// stages, which reach a cluster one after the other, the first decides, and each tells the next.
class CancelPoll {
 public:
  CancelPoll(const CopyRanks& copy, StageLinks& stages, const EngineHooks& hooks)
      : copy_(copy), stages_(stages), hooks_(hooks) {}
  // Called before each operation with the cluster that it is of, and at the end with the last cluster of the pass. With
  // one rank each call asks; several ask once for each cluster, those too in which this rank runs nothing. Errors:
  // Cancelled; Aborted - another rank is cancelled; Unavailable. Throws as StageLinks does.
  absl::Status Poll(int cluster);

 private:
  absl::Status Own() const;
  absl::Status PollOne() const;

  const CopyRanks copy_;
  StageLinks& stages_;
  const EngineHooks& hooks_;
  int cluster_ = -1;  // the last that was asked for
};

}  // namespace stemma::worker
