// What context-parallel ranks send each other of rows that they share: parts of K/V, and of their gradients. Started
// here and waited for where they are read, so that a layer may run beside.
//
// Called by worker/model/{context_hot_sets,cut_rollout}.h on the engine thread. Throws CollectiveError where a rank has
// gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "worker/parallel/communicator.h"

namespace stemma::worker {

// The names of the collectives: of a cluster's prefixes, and of a rollout that is cut by rows, whose log-probs and
// entropies travel as well.
inline constexpr char kPrefixKvName[] = "prefix_kv", kPrefixGradientsName[] = "prefix_gradients",
                      kCutKvName[] = "cut_kv", kCutGradientsName[] = "cut_gradients",
                      kCutLogProbsName[] = "cut_log_probs";

// An exchange that was started. Destroyed unread, as where an exception passes, it waits all the same.
class PendingExchange {
 public:
  // Starts to gather the ranks' parts, which are [n...] each; brings [size, n...]. `name`: one of the above.
  static PendingExchange Gather(Communicator& cp, const at::Tensor& part, const char* name = kPrefixKvName);
  // Starts to add the ranks' `parts`, [size, n...] each; brings the sum of this rank's, [n...].
  static PendingExchange Sum(Communicator& cp, const at::Tensor& parts, const char* name = kPrefixGradientsName);

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
