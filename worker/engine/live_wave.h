// A wave between its forward and its backward, and what the stage that has the head does with it: log-probs, loss and
// their gradient. Made by the pass runner; engine thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "worker/engine/payload.h"
#include "worker/loss/wave_loss.h"
#include "worker/model/layer_context.h"
#include "worker/model/wave.h"
#include "worker/ops/head.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

// Log-probs (and entropies, when asked for) of one member of a wave.
using MemberResult =
    std::function<void(const MemberRows& member, std::span<const double> log_prob, std::span<const double> entropy)>;

struct LiveWave {
  std::vector<MemberRows> members;
  WaveInput input;
  WaveTape tape;
  // Where the head is.
  at::Tensor dhidden_BD;
  at::Tensor results;  // of the head and the loss, still on the device
};

// All that it is made of outlives it. loss: null for a forward-only pass.
class WaveHead {
 public:
  WaveHead(const LayerContext& context, const Payload& payload, const LossPlan* loss, const HeadOptions& head,
           const MemberResult& results)
      : context_(context), payload_(payload), loss_(loss), head_(head), results_(results) {}

  // Returns what a wave does with the head.
  UnitUse head_use() const { return loss_ == nullptr ? UnitUse::kRead : UnitUse::kTrain; }
  // Fills the wave's results and, unless it is forward only, the gradient of what the head reads.
  void Run(at::Tensor hidden_BD, const at::Tensor& targets_B, LiveWave& live) const;
  // Waits for the wave's numbers and hands out each member's rows at the head: its response tokens. Returns the sums of
  // its loss; of a forward-only pass zeros.
  LossSums Report(const LiveWave& live) const;

 private:
  std::vector<LossMember> LossMembers(const std::vector<MemberRows>& members) const;

  const LayerContext& context_;
  const Payload& payload_;
  const LossPlan* const loss_;
  const HeadOptions head_;
  const MemberResult& results_;
};

}  // namespace stemma::worker
