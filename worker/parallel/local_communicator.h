// The communicator of an axis of size 1: every call is the identity, none can fail. So callers have one path.
#pragma once

#include <string>

#include "worker/parallel/communicator.h"

namespace stemma::worker {

class LocalCommunicator final : public Communicator {
 public:
  explicit LocalCommunicator(std::string axis);

 private:
  StartedCall Start(const CollectiveCall& call) override;
};

}  // namespace stemma::worker
