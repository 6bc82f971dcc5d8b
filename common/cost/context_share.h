// How many of a cluster's packed prefix rows each context-parallel rank has, block by block: what DealContextRows
// deals, counted. Pure; internal to common/cost, and read by the planner.
//
// Invariant: the largest part of a block is that of some rank there; sums over blocks are those of one rank, so that
// small differences do not add up.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/cost/context_rows.h"
#include "common/cost/cost_layer.h"
#include "common/cost/prefix_bytes.h"

namespace stemma {

// Rows of one rank, and of those the rows of one of its tensor-parallel ranks, rounded up block by block.
struct ContextRows {
  int64_t rows = 0, row_parts = 0;
};

struct ContextBlock {
  int64_t begin = 0, rows = 0;  // of all ranks
  int64_t part = 0;             // of the rank that has most of them
  ContextRows before;           // in the blocks before it, of the rank that has most there
  LayerRuns runs;               // of the longest pieces that any rank has
};

class ContextShare {
 public:
  // REQUIRES: prefix.rows > 0.
  ContextShare(const ByteShape& shape, const PrefixShape& prefix);

  const std::vector<ContextBlock>& blocks() const { return blocks_; }
  // Returns the rows in all blocks, of the rank that has most.
  const ContextRows& largest() const { return largest_; }
  // Returns the rows of one rank in a block.
  int64_t RowsOf(size_t block, int64_t rank) const { return rows_[block * static_cast<size_t>(ranks_) + Index(rank)]; }
  const std::vector<ContextPiece>& pieces() const { return pieces_; }

 private:
  static size_t Index(int64_t rank) { return static_cast<size_t>(rank); }
  ContextRows Largest(const std::vector<ContextRows>& of_ranks) const;

  const int64_t ranks_;
  std::vector<ContextPiece> pieces_;
  std::vector<ContextBlock> blocks_;
  std::vector<int64_t> rows_;  // by block and rank
  ContextRows largest_;
};

// Returns the shape's share, or counts it. REQUIRES: SharesRows(shape, prefix).
std::shared_ptr<const ContextShare> ShareOf(const ByteShape& shape, const PrefixShape& prefix);

// Tells whether several ranks share the prefixes' rows.
inline bool SharesRows(const ByteShape& shape, const PrefixShape& prefix) { return shape.cp > 1 && prefix.rows > 0; }

// Returns the rows of a block, of which the last one may have fewer.
int64_t BlockRows(const PrefixShape& prefix);
// Returns how many blocks there are. 0: the prefixes have no rows.
int64_t NumBlocks(const PrefixShape& prefix);

// The context-parallel rank that has most of the prefixes' rows.
inline constexpr int64_t kLargestCpRank = -1;

// Returns the rows of one rank in all blocks. Where ranks share nothing, each has all rows.
ContextRows RowsOfRank(const ByteShape& shape, const PrefixShape& prefix, int64_t cp_rank = kLargestCpRank);

}  // namespace stemma
