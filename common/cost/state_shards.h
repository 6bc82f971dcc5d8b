// How much of a model's state the rank holds that holds most, of those that hold the same part of it, over dp and cp
// (ZeRO-1: the optimizer's states are divided), and what the exchange between ranks takes. Pure arithmetic:
// worker/optim/shards.h divides by the same rule, over the same bytes in fewer, fused parameters; the worker's tests
// hold one to the other.
#pragma once

#include <cstdint>

#include "common/model/model_shard.h"

namespace stemma {

// Parameters are dealt in buckets of so many elements or more. 64 MiB of fp32: a collective of this size is bound by
// its bytes and not by its start.
inline constexpr int64_t kBucketElements = int64_t{16} << 20;

// Rounds of the exchange that are under way at once, each with buffers of its own: while one travels, the other is
// packed or added. Together they are as large as a bucket.
inline constexpr int64_t kRoundsInFlight = 2;
inline constexpr int64_t kRoundElements = kBucketElements / kRoundsInFlight;

// Returns the elements of the longest part of a round, in which at most `round_elements` of all `ranks` parts travel.
int64_t RoundPartElements(int64_t round_elements, int64_t ranks);

struct StateShare {
  int64_t elements = 0;       // of optimizer states that the rank owns
  int64_t part_elements = 0;  // of the longest round of the exchange, each rank's part; 0: one rank, nothing travels
  int64_t in_flight = 0;      // rounds at once
};

// Returns the share where `ranks` (>= 1) divide what each of them holds of the model.
StateShare LargestShare(const ModelShard& shard, int64_t ranks);

// Returns the parameters that a rank holds.
int64_t NumParameters(const ModelShard& shard);

// Returns the elements of the buffer in which tensor-parallel ranks add up gradients that each of them has a part of
// (worker/engine/partial_gradients.h): those of one layer. 0: one rank.
int64_t PartialGradientElements(const ModelShard& shard);

// The first and the last pipeline stage exchange a tied embedding's gradient so many elements at a time.
inline constexpr int64_t kStageGradientElements = int64_t{1} << 20;

// Returns the elements of the buffer into which they come. 0: the rank adds up nothing with another stage.
int64_t StageGradientElements(const ModelShard& shard);

// Bytes of the buffers of the exchange (worker/optim/shard_exchange.h), for each round in flight: all ranks' parts as
// they leave and as they come, and the own one.
constexpr int64_t ExchangeBytes(const StateShare& share, int64_t ranks, int64_t element_bytes) {
  return share.in_flight * share.part_elements * (2 * ranks + 1) * element_bytes;
}

}  // namespace stemma
