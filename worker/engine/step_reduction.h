// The reduction of one step's gradients, from its begin in the last backward to the vote. Made by ModelEngine::Prepare
// for each step; engine thread only.
//
// Gradients of which the tensor-parallel ranks of a copy have parts each are summed first, layer by layer, as the
// backward says that they are final; then the copies' gradients are.
//
// Every rank walks all rounds of worker/optim/shard_exchange.h, one that could not compute its part too, with whatever
// its gradients are: so no rank waits for one that has stopped, and whether all could is agreed afterwards. Rounds
// begin when the rank has no exchange of a split group before it (PassOptions::layer_final): a rank that waits in an
// exchange has not begun, and the ranks of an exchange need nobody's reduction to end it. Nor does the copy exchange
// rows behind them.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/partial_gradients.h"
#include "worker/engine/step_spans.h"
#include "worker/model/layer_final.h"
#include "worker/model/weights.h"
#include "worker/optim/shard_exchange.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

class StepReduction {
 public:
  // All outlive it. `exchange`: null where the pass itself brings gradients to their owners, as parameters are sharded.
  StepReduction(ShardExchange* exchange, PartialGradients& partial, const Weights& weights, const Communicator& data);

  // Returns what the step's pass calls; null: nothing. It never throws: a rank that stopped between two rounds would
  // leave the others in one.
  LayerFinal layer_final() {
    if (exchange_ == nullptr) return nullptr;
    return [this](int64_t layer) noexcept { OnFinal(layer); };
  }
  // Once the pass has ended, in whatever way: starts what can be started.
  void PassHasEnded() noexcept;
  // Sums the rest. Errors: Unavailable.
  absl::Status Finish() noexcept;
  // Sets what the reduction took and moved, and adds its span where `spans` is not null; nothing where there is one
  // rank.
  void Describe(internal::v1::StepSums& sums, StepSpans* spans) const;

 private:
  void OnFinal(int64_t layer);

  ShardExchange* const exchange_;
  PartialGradients& partial_;
  absl::Status partial_status_;
  const Weights& weights_;
  const Communicator& data_;
  const int64_t bytes_before_;
  double begin_s_ = 0, pass_end_s_ = 0, end_s_ = 0;  // begin 0: no round began in the pass
};

}  // namespace stemma::worker
