// How a rank says that its own device has failed, whoever finds it: a pass (worker/engine/exceptions.h) or a collective
// (worker/parallel/c10d_communicator.h). docs/operate.md tells operators to look for this text.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace stemma::worker {

// Returns Unavailable, which ends this process and has its server make the step again with a new one. `what`: the
// device's own words.
inline absl::Status OwnDeviceFailed(const std::string& what) {
  return absl::UnavailableError("this rank's own device failed (" + what + ")");
}

}  // namespace stemma::worker
