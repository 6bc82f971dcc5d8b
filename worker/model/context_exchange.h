// What context-parallel ranks send each other of a cluster's prefixes: parts of K/V, and of their gradients. Started
// here and waited for where they are read, so that a layer may run beside.
//
// Called by worker/model/context_hot_sets.h on the engine thread. Throws CollectiveError where a rank has gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "worker/parallel/communicator.h"

namespace stemma::worker {

// The names of the collectives.
inline constexpr char kPrefixKvName[] = "prefix_kv", kPrefixGradientsName[] = "prefix_gradients";

// An exchange that was started. Destroyed unread, as where an exception passes, it waits all the same.
class PendingExchange {
 public:
  // Starts to gather the ranks' parts, which are [n...] each; brings [size, n...].
  static PendingExchange Gather(Communicator& cp, const at::Tensor& part);
  // Starts to add the ranks' `parts`, [size, n...] each; brings the sum of this rank's, [n...].
  static PendingExchange Sum(Communicator& cp, const at::Tensor& parts);

  PendingExchange(PendingExchange&&) = default;
  PendingExchange& operator=(PendingExchange&&) = delete;
  ~PendingExchange();

  // Called once.
  at::Tensor Wait();

 private:
  PendingExchange(at::Tensor input, at::Tensor output) : input_(std::move(input)), output_(std::move(output)) {}

  at::Tensor input_, output_;
  std::unique_ptr<PendingCollective> collective_;
};

}  // namespace stemma::worker
