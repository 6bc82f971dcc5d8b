#include "server/simulation/state_exchange.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "common/base/round_up.h"
#include "common/cost/state_slabs.h"

namespace stemma::server {
namespace {

// Parameters as workers hold them: tensors of one role and layer are one, in the order of a forward.
using Parameters = std::map<std::pair<int64_t, TensorRole>, int64_t>;  // layer and role -> elements

Parameters ParametersOf(const ModelShard& shard) {
  Parameters parameters;
  for (const LocalTensor& tensor : LocalTensorsOfOneExpert(shard)) {
    const bool after_layers = tensor.spec.layer < 0 && tensor.spec.role != TensorRole::kEmbedding;
    const int64_t layer = after_layers ? shard.layer_end : tensor.spec.layer;
    parameters[{layer, tensor.spec.role}] += tensor.elements();
  }
  return parameters;
}

// A tied head's gradient is the embedding's, which ends with the first layer.
double FinalAfter(int64_t layer, const ModelShard& shard) {
  const auto layers = static_cast<double>(shard.layer_end - shard.layer_begin);
  return static_cast<double>(shard.layer_end - std::max(layer, shard.layer_begin)) / layers;
}

// A bucket of parameters: when each of its elements is final.
struct Bucket {
  struct Parameter {
    int64_t end = 0;  // in the bucket
    double final_after = 1;
  };
  std::vector<Parameter> parameters;
  int64_t elements = 0;

  // Returns when those from `begin` on are final: the first of them is, in the order of a forward, the last one.
  double FinalFrom(int64_t begin) const {
    return std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& one) { return begin < one.end; })
        ->final_after;
  }
};

// Adds the rounds of one bucket. Each of them brings a piece of every rank's part, the first rank's among them.
void AddRounds(const Bucket& bucket, int64_t ranks, std::vector<StateRound>& rounds) {
  const int64_t part = RoundUpToSlabUnit(DivideUp(bucket.elements, ranks));
  const int64_t part_max = RoundPartElements(kRoundElements, ranks);
  for (int64_t begin = 0; begin < part; begin += part_max) {
    rounds.push_back({std::min(part - begin, part_max), bucket.FinalFrom(begin)});
  }
}

// Rounds that travel one behind the other over one link.
class Link {
 public:
  Link(int64_t ranks, int64_t element_bytes, const Rates& rates)
      : ranks_(ranks), element_bytes_(element_bytes), rates_(rates) {}

  // Returns when a round ends that is ready at `ready_s`.
  double Send(const StateRound& round, double ready_s) {
    const auto bytes = static_cast<double>((ranks_ - 1) * round.part_elements * element_bytes_);
    sent_bytes_ += bytes;
    const double begin_s = std::max(ready_s, ends_s_[next_ % kRoundsInFlight]);
    free_s_ = std::max(free_s_, begin_s + rates_[kDataCollective]) + bytes * rates_[kDataByte];
    ends_s_[next_++ % kRoundsInFlight] = free_s_;
    return free_s_;
  }
  double sent_bytes() const { return sent_bytes_; }

 private:
  const int64_t ranks_, element_bytes_;
  const Rates& rates_;
  double free_s_ = 0, sent_bytes_ = 0;
  size_t next_ = 0;
  std::array<double, kRoundsInFlight> ends_s_ = {};  // of the newest rounds
};

}  // namespace

std::vector<StateRound> StateRoundsOf(const ModelShard& shard, int64_t ranks) {
  std::vector<StateRound> rounds;
  if (ranks == 1) return rounds;
  Bucket bucket;
  for (const auto& [place, elements] : ParametersOf(shard)) {
    bucket.elements += RoundUpToSlabUnit(elements);
    bucket.parameters.push_back({bucket.elements, FinalAfter(place.first, shard)});
    if (bucket.elements < kBucketElements) continue;
    AddRounds(bucket, ranks, rounds);
    bucket = {};
  }
  if (bucket.elements > 0) AddRounds(bucket, ranks, rounds);
  std::reverse(rounds.begin(), rounds.end());
  return rounds;
}

Reduction ReduceGradients(std::span<const StateRound> rounds, std::span<const LastBackward> ranks,
                          int64_t element_bytes, const Rates& rates) {
  const auto count = static_cast<int64_t>(ranks.size());
  Reduction reduction = GatherWeights(rounds, count, element_bytes, rates);
  reduction.end_s = 0;
  Link link(count, element_bytes, rates);
  double final_s = 0, final_after = -1;
  for (const StateRound& round : rounds) {
    if (round.final_after != final_after) {
      final_after = round.final_after;
      for (const LastBackward& rank : ranks) {
        final_s = std::max(final_s, rank.begin_s + final_after * (rank.end_s - rank.begin_s));
      }
    }
    reduction.end_s = link.Send(round, final_s);
  }
  return reduction;
}

Reduction GatherWeights(std::span<const StateRound> rounds, int64_t ranks, int64_t element_bytes, const Rates& rates) {
  Reduction gathering;
  Link link(ranks, element_bytes, rates);
  for (const StateRound& round : rounds) gathering.end_s = link.Send(round, /*ready_s=*/0);
  gathering.wire_s = gathering.end_s;
  gathering.sent_bytes = link.sent_bytes();
  return gathering;
}

}  // namespace stemma::server
