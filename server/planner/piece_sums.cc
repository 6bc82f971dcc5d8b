#include "server/planner/piece_sums.h"

#include <algorithm>

namespace stemma::server {

std::vector<PieceSums> SumsOfRanks(const std::vector<ContextPiece>& pieces, int64_t ranks, int64_t ancestor_rows) {
  std::vector<PieceSums> sums(static_cast<size_t>(ranks));
  for (const ContextPiece& piece : pieces) {
    PieceSums& rank = sums[static_cast<size_t>(piece.rank)];
    const int64_t earlier = ancestor_rows + piece.begin - piece.prefix_begin;
    rank.segments.Add(earlier, piece.rows());
    if (earlier > 0) rank.merged_rows += static_cast<double>(piece.rows());
    rank.score_blocks += CausalScoreBlocks(piece.rows()) + AncestorScoreBlocks(piece.rows(), earlier);
  }
  return sums;
}

PieceSums MostOf(const std::vector<PieceSums>& ranks) {
  PieceSums most;
  for (const PieceSums& rank : ranks) {
    most.segments.rows = std::max(most.segments.rows, rank.segments.rows);
    most.segments.pairs = std::max(most.segments.pairs, rank.segments.pairs);
    most.merged_rows = std::max(most.merged_rows, rank.merged_rows);
    most.score_blocks = std::max(most.score_blocks, rank.score_blocks);
  }
  return most;
}

}  // namespace stemma::server
