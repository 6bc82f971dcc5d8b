// How the packed rows of prefixes are dealt to context-parallel ranks, over drawn lengths, blocks and ranks.
#include "common/cost/context_rows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace stemma {
namespace {

struct DrawnRows {
  std::vector<int64_t> lengths;
  int64_t block_rows = 0, ranks = 1, rows = 0;
};

DrawnRows DrawRows(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  DrawnRows drawn;
  for (int64_t i = between(1, 6); i > 0; --i) drawn.lengths.push_back(between(1, between(0, 1) == 0 ? 12 : 900));
  drawn.block_rows = between(0, 2) == 0 ? 0 : between(1, 300);
  drawn.ranks = between(1, 9);
  for (const int64_t length : drawn.lengths) drawn.rows += length;
  return drawn;
}

TEST(ContextRowsTest, PiecesAreAscendingAndHoldEachRowOfEachPrefixOnce) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnRows drawn = DrawRows(seed);
    int64_t next = 0, prefix = -1, prefix_begin = 0, prefix_end = 0;
    for (const ContextPiece& piece : DealContextRows(drawn.lengths, drawn.block_rows, drawn.ranks)) {
      ASSERT_EQ(piece.begin, next);
      ASSERT_GT(piece.rows(), 0);
      if (piece.begin == prefix_end) {
        prefix_begin = prefix_end;
        prefix_end += drawn.lengths[static_cast<size_t>(++prefix)];
      }
      ASSERT_EQ(piece.prefix, prefix);
      ASSERT_EQ(piece.prefix_begin, prefix_begin);
      ASSERT_LE(piece.end, prefix_end);
      ASSERT_LT(piece.rank, drawn.ranks);
      if (drawn.block_rows > 0) {
        ASSERT_EQ(piece.begin / drawn.block_rows, (piece.end - 1) / drawn.block_rows);
      }
      next = piece.end;
    }
    EXPECT_EQ(next, drawn.rows);
  }
}

// The formula is what dealing gives: all that are left over, for each number of ranks.
TEST(ContextRowsTest, TheLargestPartOfACutRolloutIsThatOfTheRankThatIsDealtMost) {
  for (int64_t ranks = 1; ranks <= 48; ++ranks) {
    for (int64_t rows = 1; rows <= 5 * ranks + 1; ++rows) {
      ASSERT_EQ(LargestCutPart(rows, ranks), LargestContextPart(DealCutRows(rows, ranks), 0, rows, ranks))
          << rows << " rows on " << ranks << " ranks";
    }
  }
}

// The rows of one prefix in one block.
struct Part {
  std::vector<int64_t> rows;
  std::vector<double> pairs;
  int64_t end = 0;  // of its rows, from the prefix's first one
};

std::map<std::pair<int64_t, int64_t>, Part> PartsOf(const DrawnRows& drawn) {
  std::map<std::pair<int64_t, int64_t>, Part> parts;
  for (const ContextPiece& piece : DealContextRows(drawn.lengths, drawn.block_rows, drawn.ranks)) {
    Part& part = parts[{piece.prefix, drawn.block_rows == 0 ? 0 : piece.begin / drawn.block_rows}];
    part.rows.resize(static_cast<size_t>(drawn.ranks));
    part.pairs.resize(static_cast<size_t>(drawn.ranks));
    part.rows[static_cast<size_t>(piece.rank)] += piece.rows();
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      part.pairs[static_cast<size_t>(piece.rank)] += static_cast<double>(row - piece.prefix_begin + 1);
    }
    part.end = piece.end - piece.prefix_begin;
  }
  return parts;
}

// Pieces of equal length would give each rank the same pairs. Each of a rank's four ends is off by less than a row, and
// a row has at most as many pairs as there are rows before it.
TEST(ContextRowsTest, RanksHaveAboutAsManyRowsAndPairs) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnRows drawn = DrawRows(seed);
    for (const auto& [of, part] : PartsOf(drawn)) {
      const auto [least, most] = std::minmax_element(part.rows.begin(), part.rows.end());
      EXPECT_LE(*most - *least, 2) << "prefix " << of.first << ", block " << of.second;
      double mean = 0;
      for (const double pairs : part.pairs) mean += pairs / static_cast<double>(drawn.ranks);
      for (const double pairs : part.pairs) {
        EXPECT_LE(std::abs(pairs - mean), 4.0 * static_cast<double>(part.end + 1)) << "prefix " << of.first;
      }
    }
  }
}

TEST(ContextRowsTest, PartsAreCountedBlockByBlock) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnRows drawn = DrawRows(seed);
    const std::vector<ContextPiece> pieces = DealContextRows(drawn.lengths, drawn.block_rows, drawn.ranks);
    const int64_t step = drawn.block_rows == 0 ? drawn.rows : drawn.block_rows;
    for (int64_t begin = 0; begin < drawn.rows; begin += step) {
      const int64_t end = std::min(begin + step, drawn.rows);
      std::vector<int64_t> rows(static_cast<size_t>(drawn.ranks));
      for (const ContextPiece& piece : pieces) {
        if (piece.begin >= begin && piece.begin < end) rows[static_cast<size_t>(piece.rank)] += piece.rows();
      }
      EXPECT_EQ(ContextRowsOfRanks(pieces, begin, end, drawn.ranks), rows);
      EXPECT_EQ(LargestContextPart(pieces, begin, end, drawn.ranks), *std::max_element(rows.begin(), rows.end()));
    }
  }
}

// As many short prefixes as all ranks divide.
TEST(ContextRowsTest, ManyShortPrefixesAreEven) {
  for (const int64_t ranks : {2, 3, 4, 5}) {
    for (const int64_t length : {1, 2, 3, 7}) {
      const std::vector<ContextPiece> pieces = DealContextRows(std::vector<int64_t>(60, length), 0, ranks);
      EXPECT_EQ(LargestContextPart(pieces, 0, 60 * length, ranks), 60 * length / ranks)
          << ranks << " ranks, " << length;
    }
  }
}

TEST(ContextRowsTest, EachRankHasAPieceFromTheFrontAndOneFromTheBack) {
  const std::vector<ContextPiece> pieces = DealContextRows({8}, 0, 2);
  ASSERT_EQ(pieces.size(), 4U);
  EXPECT_EQ(pieces[0].rank, 0);
  EXPECT_EQ(pieces[1].rank, 1);
  EXPECT_EQ(pieces[2].rank, 1);
  EXPECT_EQ(pieces[3].rank, 0);
}

}  // namespace
}  // namespace stemma
