// What data-parallel ranks exchange in a step (ZeRO-1): gradients are summed at the rank that owns their elements, and
// the weights that it stepped come back to all. Called by worker/engine on its thread, by all ranks in the same order.
//
// Each round of worker/optim/shards.h is one collective, in the dtype of the gradients (fp32, fp64 in an fp64 run) and
// of the weights; a rank sends and receives (ranks - 1) / ranks of either once a step. With one rank nothing moves.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"
#include "worker/optim/parameter.h"
#include "worker/optim/shards.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

class ShardExchange {
 public:
  // Takes all the memory of the exchange, on the device of the parameters: a rank that lacks it can say so before the
  // others begin a collective. Throws c10::OutOfMemoryError. `parameters` outlives it; REQUIRES: ranks and shards are
  // of one size.
  ShardExchange(Communicator& ranks, const OptimizerShards& shards, std::vector<Parameter>& parameters);

  // Sums gradients over the ranks. Afterwards those of the elements that this rank owns are the sums; the others are
  // this rank's own still. Errors: Unavailable - a rank is gone; some elements are summed and others not.
  absl::Status ReduceGradients();
  // Brings all ranks the weights of every element from its owner. Errors: Unavailable - a rank is gone; some weights
  // are of this step and others of the last.
  absl::Status GatherWeights();

 private:
  Communicator& ranks_;
  std::vector<Parameter>& parameters_;
  const std::vector<ShardRound> rounds_;
  at::Tensor all_parts_, own_part_;  // bytes
};

}  // namespace stemma::worker
