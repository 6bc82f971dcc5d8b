// Interprets the program of one step on the model: Phases A, B and C, or forward only. The one place where plan,
// payload, model and loss meet. Engine thread only. It waits for the device once per wave, for the wave's results.
//
// A rank that shares split groups with others makes exchanges with them between its phases, in the order of its plan.
// One that has to stop (cancelled, out of memory, a bad plan) still walks its remaining exchanges, and says in them
// that it has stopped, so that no other rank waits for it: worker/engine/split_exchange.h.
//
// The ranks that hold one copy of the model run the same program, and stop together where a cluster begins:
// worker/engine/copy_agreement.h. The first of them alone counts rows and losses; all hear of the members' results.
#pragma once

#include <algorithm>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/engine.h"
#include "worker/engine/payload.h"
#include "worker/engine/step_spans.h"
#include "worker/loss/wave_loss.h"
#include "worker/memory/offload_store.h"
#include "worker/model/layer_final.h"
#include "worker/model/wave.h"
#include "worker/parallel/communicator.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

struct PassOptions {
  LayerContext context;
  // For plans that offload.
  HostArena* host = nullptr;
  CopyEngine* copies = nullptr;
  int64_t head_chunk_rows = 512;
  const EngineHooks* hooks = nullptr;
  Communicator* dp = nullptr;  // for split groups; null: one rank
  Communicator* tp = nullptr;  // of `context`; null: one rank, which holds whole layers
  // Hears of the layers in the last operation of a step, where that is a backward: then all exchanges of this rank are
  // over, so what it starts on `dp` meets neither sends nor receives. Else it hears nothing.
  LayerFinal layer_final = {};
  StepSpans* spans = nullptr;  // of a step that is traced, and of its entry pass; null: nothing is recorded
};

// Log-probs (and entropies, when asked for) of one member of a wave.
using MemberResult =
    std::function<void(const MemberRows& member, std::span<const double> log_prob, std::span<const double> entropy)>;

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

  int64_t peak_bytes() const { return std::max({prefix_forward_bytes, suffix_bytes, prefix_backward_bytes}); }
};

// Forward and backward: adds to the parameters' gradients. Errors: Cancelled; InvalidArgument - plan and payload
// disagree, or the plan splits a group as none is split; Aborted - another rank of a split group has given up; as of
// CatchExceptions, which it calls; Unavailable - a rank is gone: the generation is over.
absl::StatusOr<PassSums> RunStep(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                 const LossPlan& loss, const MemberResult& results);

struct LogProbOptions {
  double temperature = 1;
  bool entropy = false;
};

// Phases A and B without backward. Errors: as of RunStep.
absl::StatusOr<PassSums> RunLogProb(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                    const LogProbOptions& log_prob, const MemberResult& results);

// Walks the exchanges of a pass that does not begin, because of `cause`, which is not OK. Returns `cause`, or
// Unavailable.
absl::Status AbandonPass(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                         bool forward_only, const absl::Status& cause);

}  // namespace stemma::worker
