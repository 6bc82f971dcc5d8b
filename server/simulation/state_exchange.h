// What ranks that hold the same part of the model exchange once a step, and when: gradients in rounds, which begin
// beside the last backward, and stepped weights at the end (docs/parallelism.md, ZeRO-1). Pure.
//
// Buckets, parts and rounds are those of common/cost/state_shards.h, by which workers exchange
// (worker/optim/shards.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/cost/state_shards.h"
#include "common/model/model_shard.h"
#include "server/planner/cost_model.h"

namespace stemma::server {

// A round of the exchange, in which each rank sends and gets a part.
struct StateRound {
  int64_t part_elements = 0;
  // The share of a rank's last operation that adds gradients after which those of the round are final: 0 for the head
  // and the final norm, 1 for the embedding and the first layer.
  double final_after = 1;
};

// Returns the rounds of `ranks` ranks in the order in which they begin; none where there is one rank.
std::vector<StateRound> StateRoundsOf(const ModelShard& shard, int64_t ranks);

// When a rank runs the last operation that adds gradients; a rank without one has both at 0.
struct LastBackward {
  double begin_s = 0, end_s = 0;
};

struct Reduction {
  double wire_s = 0;  // of all rounds, with nothing else to wait for
  double end_s = 0;
  double sent_bytes = 0;  // by each rank
};

// Returns when gradients are summed. A round begins when it is final on all ranks and fewer than kRoundsInFlight others
// are under way; their bytes share the link.
Reduction ReduceGradients(std::span<const StateRound> rounds, std::span<const LastBackward> ranks,
                          int64_t element_bytes, const Rates& rates);

// Returns what the stepped weights take, in the same rounds; end_s is their seconds.
Reduction GatherWeights(std::span<const StateRound> rounds, int64_t ranks, int64_t element_bytes, const Rates& rates);

}  // namespace stemma::server
