#include "common/cost/context_rows.h"

#include <algorithm>

#include "glog/logging.h"

namespace stemma {
namespace {

// Deals rows [begin, end) of one prefix in one block.
void DealPart(int64_t begin, int64_t end, int64_t ranks, ContextPiece piece, std::vector<ContextPiece>& pieces) {
  const int64_t rows = end - begin, count = ranks == 1 ? 1 : 2 * ranks;
  for (int64_t i = 0; i < count; ++i) {
    piece.begin = begin + i * rows / count;
    piece.end = begin + (i + 1) * rows / count;
    piece.rank = ((i < ranks ? i : count - 1 - i) + piece.prefix) % ranks;
    if (piece.rows() > 0) pieces.push_back(piece);
  }
}

}  // namespace

std::vector<ContextPiece> DealContextRows(const std::vector<int64_t>& lengths, int64_t block_rows, int64_t ranks) {
  std::vector<ContextPiece> pieces;
  ContextPiece piece;
  for (const int64_t length : lengths) {
    const int64_t prefix_end = piece.prefix_begin + length;
    for (int64_t begin = piece.prefix_begin; begin < prefix_end;) {
      const int64_t end = block_rows == 0 ? prefix_end : std::min(prefix_end, (begin / block_rows + 1) * block_rows);
      DealPart(begin, end, ranks, piece, pieces);
      begin = end;
    }
    ++piece.prefix;
    piece.prefix_begin = prefix_end;
  }
  return pieces;
}

std::vector<ContextPiece> DealCutRows(int64_t rows, int64_t ranks) {
  return DealContextRows({rows}, /*block_rows=*/0, ranks);
}

// The i-th of n pieces has one of the `left` rows that are over when each has as many iff a multiple of n/left lies in
// (i, i + 1], and the piece that is as far from the end iff one lies in [i, i + 1). Both are true of the first multiple
// where it is no whole number, and none is where multiples are whole numbers; i is of the first half, as left > 2 then.
int64_t LargestCutPart(int64_t rows, int64_t ranks) {
  if (ranks == 1) return rows;
  const int64_t pieces = 2 * ranks, left = rows % pieces;
  const int64_t over = left == 0 ? 0 : pieces % left == 0 ? 1 : 2;
  return 2 * (rows / pieces) + over;
}

std::vector<int64_t> ContextRowsOfRanks(const std::vector<ContextPiece>& pieces, int64_t begin, int64_t end,
                                        int64_t ranks) {
  std::vector<int64_t> rows(static_cast<size_t>(ranks));
  for (const ContextPiece& piece : pieces) {
    if (piece.end <= begin || piece.begin >= end) continue;
    CHECK(piece.begin >= begin && piece.end <= end) << "a piece lies across the end of a block";
    rows[static_cast<size_t>(piece.rank)] += piece.rows();
  }
  return rows;
}

int64_t LargestContextPart(const std::vector<ContextPiece>& pieces, int64_t begin, int64_t end, int64_t ranks) {
  const std::vector<int64_t> rows = ContextRowsOfRanks(pieces, begin, end, ranks);
  return *std::max_element(rows.begin(), rows.end());
}

}  // namespace stemma
