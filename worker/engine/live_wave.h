// A wave between its forward and its backward, and what the stage that has the head does with it: log-probs, loss and
// their gradient. Made by the pass runner; engine thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/host_transfer.h"
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

// What the head and the loss say of a wave's members, on its way to the host.
struct WaveResults {
  std::vector<MemberRows> members;  // that this rank tells of; none where another rank of a cut wave does
  std::unique_ptr<HostRead> numbers;
};

struct LiveWave {
  std::vector<MemberRows> members;  // whole, also where ranks share their rows
  WaveInput input;
  WaveTape tape;
  // Where the head is.
  at::Tensor dhidden_BD;
  WaveResults results;
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
  LossSums Report(WaveResults& wave) const;

 private:
  void StartRead(LiveWave& live, const HeadOutput& output, const at::Tensor& sums) const;
  std::vector<RowRange> RolloutRows(const LiveWave& live) const;
  std::vector<LossMember> LossMembers(const std::vector<MemberRows>& members) const;

  const LayerContext& context_;
  const Payload& payload_;
  const LossPlan* const loss_;
  const HeadOptions head_;
  const MemberResult& results_;
};

// Reads the numbers of waves, each when the next one's are on their way, so that a device that runs behind its host
// never waits for work meanwhile.
class WaveReports {
 public:
  // `head` outlives it.
  WaveReports(const Backend& backend, const WaveHead& head)
      : unread_max_(backend.host_reads_are_free ? 0 : 1), head_(head) {}

  // Takes a wave that has just run. Returns the sums of the losses that it read.
  LossSums Add(WaveResults wave);
  // The same, of all waves that are left.
  LossSums End() { return Read(0); }

 private:
  LossSums Read(size_t unread_max);

  const size_t unread_max_;
  const WaveHead& head_;
  std::deque<WaveResults> unread_;
};

}  // namespace stemma::worker
