// Where the ranks of a test wait for each other: an agreement on nothing. Steps need no such call.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tests/testing/namespaces.h"
#include "worker/parallel/communicator.h"

namespace stemma::testing {

// Returns when every rank has come.
inline absl::Status Meet(Communicator& ranks, std::string_view name) {
  std::array<int64_t, 1> word = {0};
  return ranks.Agree(name, word);
}

}  // namespace stemma::testing
