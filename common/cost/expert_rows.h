// How many assignments of rows to experts a rank may be given. Pure; the worker keeps by it, and bytes are counted by
// it.
//
// A row's choice is free, so that all rows may choose the experts of one rank. One layer's products are counted so; but
// of its tape a rank keeps no more than half again of what it has where rows choose evenly, and of a layer that has
// more it makes the products again in its backward, as a later policy would. A plan need not have room for a model
// all of whose layers send all their rows to one rank.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/model/model_config.h"

namespace stemma {

// Returns how many of so many rows' assignments may be to a rank's experts.
inline int64_t MostAssignments(const Experts& experts, int64_t rows) {
  return rows * std::min(experts.per_token, experts.held());
}

// Returns up to how many of them a rank keeps products for its backward: of parts of the rows no more together than of
// all rows.
inline int64_t KeptAssignments(const Experts& experts, int64_t rows) {
  return std::min(MostAssignments(experts, rows), 3 * rows * experts.per_token / (2 * experts.ep));
}

}  // namespace stemma
