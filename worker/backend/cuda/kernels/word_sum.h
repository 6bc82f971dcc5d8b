// The sum of weights' words times factors of their rows and columns, modulo 2^64. Private to worker/backend/cuda.
//
// Reads the array once. A thread keeps its columns' sums of word times RowFactor while it walks down its rows, several
// of which are on their way at a time, and takes ColumnFactor in at their end: both factors cost a fraction of the
// words. Each team writes what it has to partials[index()]; one team then adds these up. Whole numbers: no order
// changes the sum.
#pragma once

#include "worker/backend/cuda/kernels/packs.h"
#include "worker/backend/word_factors.h"

namespace stemma::worker::cuda {

// Packs of a row that a thread adds up, and rows that it reads before it adds the first of them.
inline constexpr int kPacksOfThread = 2, kRowsAtOnce = 4;

template <typename T>
struct WordSumArgs {
  const T* words;
  int64_t count;
  int64_t first, columns;  // element i is the matrix's element first + i, row by row
  uint64_t row_begin, column_begin;
  int64_t* partials;  // [teams], written; their bits are unsigned numbers
};

// A pack then lies in one row.
template <typename T>
bool UsesVectors(const WordSumArgs<T>& a) {
  return a.count % kVector<T> == 0 && a.first % kVector<T> == 0 && a.columns % kVector<T> == 0 && AllAligned(a.words);
}

// How threads stand on the matrix: `wide` beside each other, kPacksOfThread packs each, and `high` rows.
struct WordTiles {
  int64_t wide, high;
  int64_t row_begin, row_end;  // of the rows that the array touches
  int64_t tiles;               // across a row
  int64_t parts;               // down the rows: as many as there are teams for
  int64_t rows_of_part;

  STEMMA_DEVICE int64_t items() const { return tiles * parts; }
};

template <typename T, int V, typename Team>
STEMMA_DEVICE WordTiles TilesOf(const WordSumArgs<T>& a, const Team& team) {
  const int64_t packs = (a.columns + V - 1) / V, size = team.size();
  const int64_t threads = (packs + kPacksOfThread - 1) / kPacksOfThread;
  WordTiles t{};
  t.wide = threads < size ? threads : size;
  t.high = size / t.wide;
  t.row_begin = a.first / a.columns;
  t.row_end = (a.first + a.count + a.columns - 1) / a.columns;
  t.tiles = (threads + t.wide - 1) / t.wide;
  t.parts = team.count() < t.tiles ? 1 : team.count() / t.tiles;
  t.rows_of_part = (t.row_end - t.row_begin + t.parts - 1) / t.parts;
  return t;
}

// What a thread reads at once of rows `row`, row + high, … below row_end, and of its packs from `column` on. Zeros
// stand for what is not of the array.
template <typename T, int V>
struct WordBatch {
  Pack<T, V> packs[kRowsAtOnce][kPacksOfThread];

  STEMMA_DEVICE WordBatch(const WordSumArgs<T>& a, const WordTiles& t, int64_t row, int64_t row_end, int64_t column) {
    STEMMA_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      STEMMA_UNROLL
      for (int c = 0; c < kPacksOfThread; ++c) {
        const int64_t of_row = row + r * t.high, of_column = column + c * t.wide * V;
        const int64_t i = of_row * a.columns + of_column - a.first;
        packs[r][c] = {};
        if (of_row < row_end && of_column < a.columns && i >= 0 && i < a.count) packs[r][c] = Load<V>(a.words + i);
      }
    }
  }
};

// Sums the words of a part's rows in the thread's columns, from the row and the column of the team's first thread.
template <typename T, int V, typename Team>
STEMMA_DEVICE uint64_t SumOfPart(const Team& team, const WordSumArgs<T>& a, const WordTiles& t, int64_t row_begin,
                                 int64_t tile_column) {
  const int64_t column = tile_column + team.rank() % t.wide * V;
  const int64_t row_end = row_begin + t.rows_of_part < t.row_end ? row_begin + t.rows_of_part : t.row_end;
  uint64_t of_column[kPacksOfThread][V] = {};
  for (int64_t row = row_begin + team.rank() / t.wide; row < row_end; row += kRowsAtOnce * t.high) {
    const WordBatch<T, V> batch(a, t, row, row_end, column);
    STEMMA_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const uint64_t factor = RowFactor(a.row_begin + static_cast<uint64_t>(row + r * t.high));
      STEMMA_UNROLL
      for (int c = 0; c < kPacksOfThread; ++c) {
        STEMMA_UNROLL
        for (int j = 0; j < V; ++j) of_column[c][j] += factor * BitsAt(batch.packs[r][c], j);
      }
    }
  }
  uint64_t sum = 0;
  STEMMA_UNROLL
  for (int c = 0; c < kPacksOfThread; ++c) {
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      sum += of_column[c][j] * ColumnFactor(a.column_begin + static_cast<uint64_t>(column + c * t.wide * V + j));
    }
  }
  return sum;
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void SumWords(Team& team, const WordSumArgs<T>& a) {
  const WordTiles t = TilesOf<T, V>(a, team);
  uint64_t sum = 0;
  for (int64_t item = team.index(); item < t.items() && team.rank() < t.wide * t.high; item += team.count()) {
    const int64_t part = item / t.tiles, tile = item - part * t.tiles;
    sum += SumOfPart<T, V>(team, a, t, t.row_begin + part * t.rows_of_part, tile * t.wide * kPacksOfThread * V);
  }
  sum = team.Sum(sum);
  if (team.rank() == 0) a.partials[team.index()] = static_cast<int64_t>(sum);
}

// One team.
template <typename Team>
STEMMA_DEVICE void SumOfPartials(Team& team, const int64_t* partials, int64_t num_partials, int64_t* sum) {
  uint64_t all = 0;
  for (int64_t n = team.rank(); n < num_partials; n += team.size()) all += static_cast<uint64_t>(partials[n]);
  all = team.Sum(all);
  if (team.rank() == 0) *sum = static_cast<int64_t>(all);
}

}  // namespace stemma::worker::cuda
