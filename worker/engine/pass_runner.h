// Interprets the program of one step on the model: Phases A, B and C, or forward only. The one place where plan,
// payload, model and loss meet. Engine thread only. It waits for the device once per wave, for the wave's results, and
// once before Phase C where context-parallel ranks meet.
//
// A rank that shares split groups with others makes exchanges with them between its phases, in the order of its plan.
// One that has to stop (cancelled, out of memory, a bad plan) still walks its remaining exchanges, and says in them
// that it has stopped, so that no other rank waits for it: worker/engine/split_exchange.h.
//
// Where parameters are sharded, operations gather them from all copies, and all of these make the same visits.
//
// The ranks that hold one copy of the model run the same program, and stop together where a cluster begins:
// worker/engine/copy_agreement.h. Of those that run the same rows (tp) the first alone counts rows and losses, and all
// hear of the members' results. Those that run other rows (cp) count their own, and hear of their own members. Of a
// pipeline's stages, which run the same rows through other layers, the last one counts and hears.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/engine.h"
#include "worker/engine/live_wave.h"
#include "worker/engine/pass_sums.h"
#include "worker/engine/payload.h"
#include "worker/engine/step_spans.h"
#include "worker/loss/loss_plan.h"
#include "worker/memory/copy_engine.h"
#include "worker/memory/host_arena.h"
#include "worker/model/layer_final.h"
#include "worker/model/sharded_units.h"
#include "worker/model/wave.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

struct PassOptions {
  LayerContext context;
  // For plans that offload.
  HostArena* host = nullptr;
  CopyEngine* copy_engine = nullptr;
  int64_t head_chunk_rows = 512;
  const EngineHooks* hooks = nullptr;
  Communicator* data = nullptr;  // of MeshRanks, for split groups; null: one rank
  CopyRanks copy = {};           // of `context`
  // Called with each layer whose gradients are final. That is so only in the last operation of a step, and only where
  // that operation is a backward; in any other step it is never called. It may start collectives on `data`: all
  // exchanges of split groups are over by then, so no send or receive comes between them. Where context-parallel ranks
  // end their programs with different operations, it is called only once the copy exchanges no more rows, so that all
  // ranks start these collectives and those of cp in one order. It must not wait for other copies or for
  // context-parallel ranks, which may be in other operations and wait for this rank.
  LayerFinal layer_final = {};
  ShardedUnits* units = nullptr;  // `context.parameters`, where they are sharded; null: they are whole
  StepSpans* spans = nullptr;     // of a step that is traced, and of its entry pass; null: nothing is recorded

  // Lets the pass gather the parameters of its weights; null: they are whole.
  void UseUnits(ShardedUnits* of_weights) {
    units = of_weights;
    context.parameters = &WholeParameters();
    if (of_weights != nullptr) context.parameters = of_weights;
  }
};

// Forward and backward: adds to the parameters' gradients. Errors: Cancelled; InvalidArgument - plan and payload
// disagree, or the plan splits a group as none is split; Aborted - another rank of a split group has given up; as of
// CatchExceptions, which it calls; Unavailable - a rank is gone: the generation is over.
absl::StatusOr<PassSums> RunStep(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                 const LossPlan& loss, const MemberResult& results);

struct LogProbOptions {
  double temperature = 1;
  bool entropy = false;
  bool whole_rollouts = false;  // as of a loss that needs them: the pass before its step has the bits of the step
};

// Phases A and B without backward. Errors: as of RunStep.
absl::StatusOr<PassSums> RunLogProb(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                    const LogProbOptions& log_prob, const MemberResult& results);

// Walks the exchanges of a pass that does not begin, because of `cause`, which is not OK. Returns `cause`, or
// Unavailable.
absl::Status AbandonPass(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                         bool forward_only, const absl::Status& cause);

}  // namespace stemma::worker
