// Data-parallel ranks with one known mistake, by name, for the probe: a comparison that the right ranks pass must fail
// on them.
//
//   skipped_reduction   a rank steps its own gradients and not the sums
//   mean_for_sum        gradients are divided by the number of ranks
//   swapped_weights     stepped weights come back in the places of another rank's
#pragma once

#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "worker/parallel/communicator.h"

namespace stemma::testing {

// Null: unknown name.
std::unique_ptr<Communicator> MakeControlRank(const std::string& name, std::unique_ptr<Communicator> right);

}  // namespace stemma::testing
