// The digest of weights that one rank holds whole (worker/model/weights_digest.h).
#pragma once

#include <string>

#include "worker/backend/composed/composed_backend.h"
#include "worker/model/weights_digest.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::testing {

inline std::string WeightsDigest(const worker::Weights& weights) {
  worker::LocalCommunicator alone("tp");
  return *worker::MeshDigest(weights, worker::ComposedKernels(), {alone, alone, alone});
}

}  // namespace stemma::testing
