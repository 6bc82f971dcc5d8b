// A rank behind a link of stated speed: what it has started is there when the right rank has it, and not before the
// link's delay and the bytes over its bandwidth have passed. What is started together shares nothing: the link is as
// wide as it has to be. For tests of what computing hides.
#pragma once

#include <memory>

#include "tests/testing/namespaces.h"
#include "worker/parallel/communicator.h"

namespace stemma::testing {

struct Link {
  double delay_s = 0;
  double bytes_per_s = 1e12;

  double seconds(int64_t bytes) const { return delay_s + static_cast<double>(bytes) / bytes_per_s; }
};

// Reduce-scatters and all-gathers may be in flight; other calls wait for the right rank alone.
std::unique_ptr<Communicator> MakeLinkedRank(std::unique_ptr<Communicator> right, const Link& link);

}  // namespace stemma::testing
