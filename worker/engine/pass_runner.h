// Interprets the program of one step on the model: Phases A, B and C, or forward only. The one place where plan,
// payload, model and loss meet. Engine thread only. It waits for the device once per wave, for the wave's results.
#pragma once

#include <algorithm>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/engine.h"
#include "worker/engine/payload.h"
#include "worker/loss/wave_loss.h"
#include "worker/memory/offload_store.h"
#include "worker/model/wave.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

struct PassOptions {
  LayerContext context;
  // For plans that offload.
  HostArena* host = nullptr;
  CopyEngine* copies = nullptr;
  int64_t head_chunk_rows = 512;
  const EngineHooks* hooks = nullptr;
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
  ResidencyStats offload;  // sums over the clusters; peaks are their highest

  int64_t peak_bytes() const { return std::max({prefix_forward_bytes, suffix_bytes, prefix_backward_bytes}); }
};

// Forward and backward: adds to the parameters' gradients. Errors: Cancelled; InvalidArgument - plan and payload
// disagree.
absl::StatusOr<PassSums> RunStep(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                 const LossPlan& loss, const MemberResult& results);

struct LogProbOptions {
  double temperature = 1;
  bool entropy = false;
};

// Phases A and B without backward.
absl::StatusOr<PassSums> RunLogProb(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                    const LogProbOptions& log_prob, const MemberResult& results);

}  // namespace stemma::worker
