// The sum of weights' words times factors of their rows and columns, modulo 2^64. Private to worker/backend/cuda.
//
// Reads the array once. A thread keeps its columns' sums of word times RowFactor while it walks down a strip of rows,
// and takes ColumnFactor in once for each strip: both factors cost a fraction of the words. Each team writes what it
// has to partials[index()]; one team then adds these up. Whole numbers: no order changes the sum.
#pragma once

#include "worker/backend/cuda/kernels/packs.h"
#include "worker/backend/word_factors.h"

namespace stemma::worker::cuda {

// Rows of a strip for each thread that stands on one of its columns.
inline constexpr int64_t kRowsOfStrip = 32;

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

// How threads stand on the matrix: `wide` packs of a row beside each other, `high` rows.
struct WordTiles {
  int64_t wide, high;
  int64_t row_begin, row_end;  // of the rows that the array touches
  int64_t tiles;               // across a row
  int64_t strips;

  STEMMA_DEVICE int64_t items() const { return tiles * strips; }
};

template <typename T, int V>
STEMMA_DEVICE WordTiles TilesOf(const WordSumArgs<T>& a, int team_size) {
  const int64_t packs = (a.columns + V - 1) / V;
  WordTiles t{};
  t.wide = packs < team_size ? packs : team_size;
  t.high = team_size / t.wide;
  t.row_begin = a.first / a.columns;
  t.row_end = (a.first + a.count + a.columns - 1) / a.columns;
  t.tiles = (packs + t.wide - 1) / t.wide;
  const int64_t rows = t.high * kRowsOfStrip;
  t.strips = (t.row_end - t.row_begin + rows - 1) / rows;
  return t;
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void SumWords(Team& team, const WordSumArgs<T>& a) {
  const WordTiles t = TilesOf<T, V>(a, team.size());
  uint64_t sum = 0;
  for (int64_t item = team.index(); item < t.items(); item += team.count()) {
    const int64_t strip = item / t.tiles;
    const int64_t column = ((item - strip * t.tiles) * t.wide + team.rank() % t.wide) * V;
    if (column >= a.columns || team.rank() >= t.wide * t.high) continue;
    uint64_t of_column[V] = {};
    const int64_t row_begin = t.row_begin + strip * t.high * kRowsOfStrip + team.rank() / t.wide;
    STEMMA_UNROLL_BY_8
    for (int64_t n = 0; n < kRowsOfStrip; ++n) {
      const int64_t row = row_begin + n * t.high, i = row * a.columns + column - a.first;
      if (i < 0 || i >= a.count) continue;
      const Pack<T, V> pack = Load<V>(a.words + i);
      const uint64_t factor = RowFactor(a.row_begin + static_cast<uint64_t>(row));
      STEMMA_UNROLL
      for (int j = 0; j < V; ++j) of_column[j] += factor * BitsAt(pack, j);
    }
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) sum += of_column[j] * ColumnFactor(a.column_begin + static_cast<uint64_t>(column + j));
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
