// SideQueue: a second queue of a device's work, beside that of the computation.
//
// For what the computation need not wait for, as the sums of gradients between ranks beside the backward. Called by
// worker/optim on the engine thread. Memory that work in this queue touches is taken before, changed by nobody else
// meanwhile, and kept until ComputeWaits was called after it. A CPU has none: there work is done when its call returns.
#pragma once

#include <functional>

namespace stemma::worker {

class SideQueue {
 public:
  virtual ~SideQueue() = default;

  // Calls `work`, which gives the device work: into this queue, behind all that the computation has been given so far.
  virtual void Run(const std::function<void()>& work) = 0;
  // Lets what the computation is given from now on come after all that this queue has been given. Never waits.
  virtual void ComputeWaits() = 0;
};

}  // namespace stemma::worker
