// Which optimizer states each data-parallel rank owns (ZeRO-1), and in which rounds gradients are summed at their
// owners and stepped weights come back. Pure: sizes in, lists out; no LibTorch. worker/optim/shard_exchange.h
// executes the rounds.
//
// Parameters are dealt in buckets: parameters in their order, together of kBucketElements or more. Each bucket is cut
// into one part per rank, at multiples of kStateSlabUnit, so that a bucket can be reduced when its last gradient is
// there. Invariants:
//  (1) every element has one owner, and a rank owns at most one range of a parameter.
//  (2) beyond its even share a rank owns at most two slab units for each parameter.
//  (3) with one rank it owns everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/cost/state_shards.h"
#include "worker/optim/ranges.h"
#include "worker/optim/slab_order.h"

namespace stemma::worker {

// One collective: the part of each owner, in elements of a buffer that all parts share in length.
struct ShardRound {
  int64_t part_elements = 0;  // of each owner; the longest one's, the others are padded
  std::vector<Slab> parts;    // by owner; slab_begin counts from the begin of the part

  // Returns the first parameter of which it brings elements.
  int64_t first_parameter() const;
};

class OptimizerShards {
 public:
  // `parameter_elements`: of each parameter; `ranks` >= 1; `bucket_elements` >= 1.
  OptimizerShards(const std::vector<int64_t>& parameter_elements, int64_t ranks,
                  int64_t bucket_elements = kBucketElements);
  // Deals by the buckets that are given, as the first parameter of each, in order and from 0 on.
  OptimizerShards(const std::vector<int64_t>& parameter_elements, int64_t ranks,
                  const std::vector<int64_t>& bucket_begins);

  int64_t ranks() const { return ranks_; }
  // Returns what the rank owns; it may be nothing where there are fewer slab units than ranks.
  const ParameterRanges& owned(int64_t rank) const { return owned_[static_cast<size_t>(rank)]; }
  // Returns all elements, once each, in rounds of at most round_elements (at least one slab unit of each rank) over all
  // parts; a round stays within a bucket.
  std::vector<ShardRound> Rounds(int64_t round_elements = kRoundElements) const;

 private:
  void AddBucket(const std::vector<int64_t>& parameter_elements, int64_t first, int64_t last);

  const int64_t ranks_;
  std::vector<std::vector<ParameterRanges>> buckets_;  // by bucket and rank
  std::vector<ParameterRanges> owned_;                 // by rank
};

}  // namespace stemma::worker
