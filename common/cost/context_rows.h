// How context-parallel ranks share the packed rows of a cluster's prefixes, and those of a rollout that is cut by rows.
// Pure: sizes in, lists out; the worker deals by it, the planner counts by it.
//
// Causal attention makes late rows expensive, so each prefix is cut into 2 · ranks pieces, of which rank r has the r-th
// from the front and the r-th from the back (zigzag): every rank has about as many rows and as many (query, key) pairs.
// The next prefix begins with the next rank, so that many short ones are not all one rank's.
// Where the packed rows are computed in blocks, each block is dealt by itself. The rows of a piece need the K/V of all
// rows before it in its prefix. One rank has one piece of each prefix in each block.
//
// Invariants: the pieces are ascending and hold every row once; within a block two ranks' rows differ by at most two
// for each prefix that has rows there.
#pragma once

#include <cstdint>
#include <vector>

namespace stemma {

// Rows [begin, end) of the packed prefixes, not empty.
struct ContextPiece {
  int64_t begin = 0, end = 0;
  int64_t prefix = 0;        // index of the prefix that they are of
  int64_t prefix_begin = 0;  // its first packed row
  int64_t rank = 0;          // that computes them

  int64_t rows() const { return end - begin; }
  bool operator==(const ContextPiece&) const = default;
};

// `lengths`: rows of each prefix, > 0. `block_rows`: 0: one block.
std::vector<ContextPiece> DealContextRows(const std::vector<int64_t>& lengths, int64_t block_rows, int64_t ranks);

// Deals the rows of a rollout's suffix in Phase B, as those of one prefix at once.
std::vector<ContextPiece> DealCutRows(int64_t rows, int64_t ranks);
// Returns the rows of the rank that has most of them.
int64_t LargestCutPart(int64_t rows, int64_t ranks);
// No rollout of fewer rows is cut: each rank has two pieces, and none is empty.
inline int64_t FewestCutRows(int64_t ranks) { return 2 * ranks; }

// Returns how many of the rows [begin, end) each rank has. No piece lies across `begin` or `end`.
std::vector<int64_t> ContextRowsOfRanks(const std::vector<ContextPiece>& pieces, int64_t begin, int64_t end,
                                        int64_t ranks);

// Returns the most of them: what each rank's part of a gathering of those rows holds.
int64_t LargestContextPart(const std::vector<ContextPiece>& pieces, int64_t begin, int64_t end, int64_t ranks);

}  // namespace stemma
