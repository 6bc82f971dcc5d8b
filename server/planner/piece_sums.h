// What each context-parallel rank has of rows that ranks share, a cluster's prefixes or a rollout that is cut: its
// pieces, added up. Pure; the cost model's.
#pragma once

#include <cstdint>
#include <vector>

#include "common/cost/context_rows.h"
#include "common/cost/flops.h"

namespace stemma::server {

struct PieceSums {
  SegmentSums segments;
  double merged_rows = 0;   // whose attention is of two parts, themselves and earlier rows
  double score_blocks = 0;  // of one head and layer, forward
};

// Returns the sums of each rank. `ancestor_rows`: that all of the rows attend to beside earlier ones of their own.
std::vector<PieceSums> SumsOfRanks(const std::vector<ContextPiece>& pieces, int64_t ranks, int64_t ancestor_rows);

// Returns of each number the most of any rank: ranks' rows and pairs differ little.
PieceSums MostOf(const std::vector<PieceSums>& ranks);

}  // namespace stemma::server
