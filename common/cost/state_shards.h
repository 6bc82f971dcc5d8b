// How much of a model's state the rank of a data-parallel gang holds that holds most (ZeRO-1: the optimizer's states
// are divided), and what the exchange between ranks takes. Pure arithmetic: worker/optim/shards.h divides by the same
// rule, over the same bytes in fewer, fused parameters; the worker's tests hold one to the other.
#pragma once

#include <cstdint>

#include "common/model/model_config.h"

namespace stemma {

// Parameters are dealt in buckets of so many elements or more. 64 MiB of fp32: a collective of this size is bound by
// its bytes and not by its start.
inline constexpr int64_t kBucketElements = int64_t{16} << 20;

// Returns the elements of the longest part of a round, in which at most `round_elements` of all `ranks` parts travel.
int64_t RoundPartElements(int64_t round_elements, int64_t ranks);

struct StateShare {
  int64_t elements = 0;       // of optimizer states that the rank owns
  int64_t part_elements = 0;  // of the longest round of the exchange, each rank's part; 0: one rank, nothing travels
};

// `ranks` >= 1.
StateShare LargestShare(const ModelConfig& config, int64_t ranks);

// Bytes of the buffers of one exchange: all ranks' parts and the own one (worker/optim/shard_exchange.h), and all parts
// once more, in the communicator (worker/parallel/c10d_communicator.h).
constexpr int64_t ExchangeBytes(const StateShare& share, int64_t ranks, int64_t element_bytes) {
  return share.part_elements * (2 * ranks + 1) * element_bytes;
}

}  // namespace stemma
