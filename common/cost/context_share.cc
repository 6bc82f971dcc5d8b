#include "common/cost/context_share.h"

#include <algorithm>

#include "common/base/round_up.h"

namespace stemma {
namespace {

// Adds a piece's attention where no other needs as much.
void AddLayerRun(const LayerRun& run, LayerRuns& runs) {
  const auto covers = [](const LayerRun& a, const LayerRun& b) {
    return a.rows >= b.rows && a.ancestor_rows >= b.ancestor_rows;
  };
  if (std::any_of(runs.begin(), runs.end(), [&](const LayerRun& other) { return covers(other, run); })) return;
  runs.erase(std::remove_if(runs.begin(), runs.end(), [&](const LayerRun& other) { return covers(run, other); }),
             runs.end());
  runs.push_back(run);
}

// Returns the lengths of the prefixes that a shape is made of.
std::vector<int64_t> PrefixLengths(const PrefixShape& prefix) {
  return prefix.lengths.empty() ? std::vector<int64_t>{prefix.rows} : prefix.lengths;
}

}  // namespace

std::shared_ptr<const ContextShare> ShareOf(const ByteShape& shape, const PrefixShape& prefix) {
  return prefix.share != nullptr ? prefix.share : std::make_shared<const ContextShare>(shape, prefix);
}

int64_t BlockRows(const PrefixShape& prefix) {
  return prefix.block_rows > 0 ? std::min(prefix.block_rows, prefix.rows) : prefix.rows;
}

int64_t NumBlocks(const PrefixShape& prefix) { return prefix.rows == 0 ? 0 : DivideUp(prefix.rows, BlockRows(prefix)); }

ContextRows RowsOfRank(const ByteShape& shape, const PrefixShape& prefix, int64_t cp_rank) {
  if (prefix.rows == 0) return {};
  if (!SharesRows(shape, prefix)) {
    const int64_t block_rows = BlockRows(prefix), rest = prefix.rows % block_rows;
    return {.rows = prefix.rows,
            .row_parts = prefix.rows / block_rows * DivideUp(block_rows, shape.tp) + DivideUp(rest, shape.tp)};
  }
  const std::shared_ptr<const ContextShare> share = ShareOf(shape, prefix);
  if (cp_rank == kLargestCpRank) return share->largest();
  ContextRows own;
  for (size_t block = 0; block < share->blocks().size(); ++block) {
    const int64_t rows = share->RowsOf(block, cp_rank);
    own.rows += rows;
    own.row_parts += DivideUp(rows, shape.tp);
  }
  return own;
}

ContextShare::ContextShare(const ByteShape& shape, const PrefixShape& prefix)
    : ranks_(shape.cp), pieces_(DealContextRows(PrefixLengths(prefix), prefix.block_rows, shape.cp)) {
  const int64_t block_rows = BlockRows(prefix);
  const auto num_blocks = static_cast<size_t>(NumBlocks(prefix));
  blocks_.resize(num_blocks);
  rows_.resize(num_blocks * Index(ranks_));
  for (const ContextPiece& piece : pieces_) {
    const auto block = static_cast<size_t>(piece.begin / block_rows);
    rows_[block * Index(ranks_) + Index(piece.rank)] += piece.rows();
    AddLayerRun({piece.rows(), piece.rows(), piece.begin - piece.prefix_begin}, blocks_[block].runs);
  }
  std::vector<ContextRows> of_ranks(Index(ranks_));
  for (size_t b = 0; b < num_blocks; ++b) {
    ContextBlock& block = blocks_[b];
    block.begin = static_cast<int64_t>(b) * block_rows;
    block.rows = std::min(block_rows, prefix.rows - block.begin);
    block.before = Largest(of_ranks);
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const int64_t rows = RowsOf(b, rank);
      block.part = std::max(block.part, rows);
      of_ranks[Index(rank)].rows += rows;
      of_ranks[Index(rank)].row_parts += DivideUp(rows, shape.tp);
    }
  }
  largest_ = Largest(of_ranks);
}

ContextRows ContextShare::Largest(const std::vector<ContextRows>& of_ranks) const {
  ContextRows largest;
  for (const ContextRows& rows : of_ranks) {
    largest.rows = std::max(largest.rows, rows.rows);
    largest.row_parts = std::max(largest.row_parts, rows.row_parts);
  }
  return largest;
}

}  // namespace stemma
