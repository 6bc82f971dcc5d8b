// Sums over rows of partial sums, in a fixed order. Private to worker/backend/cuda.
//
// The second stage of every sum over rows (dweight of norms, sums of a loss): R partial rows of `width` elements are
// read once. A team takes 32 columns; its groups of 32 threads take every (size / 32)th row each, and their sums are
// added in the order of the groups. No atomics.
#pragma once

#include "worker/backend/cuda/kernels/elements.h"

namespace stemma::worker::cuda {

inline constexpr int kColumnsPerTeam = 32;

template <typename A>
struct ColumnSumsArgs {
  const A* partials;  // [rows, row_stride]
  A* sums;            // [width], added to
  A* next_sums;       // [width] of the columns behind those, added to; null: none
  int64_t rows, width, row_stride;

  // Where the sum of a column is added; null: nowhere.
  STEMMA_DEVICE A* SumOf(int64_t column) const {
    if (column < width) return sums + column;
    return next_sums != nullptr && column < 2 * width ? next_sums + (column - width) : nullptr;
  }
};

// `shared`: an element per thread, which all threads of the team see.
template <typename A, typename Team>
STEMMA_DEVICE void AddColumnSums(Team& team, const ColumnSumsArgs<A>& a, A* shared) {
  const int columns = team.size() < kColumnsPerTeam ? team.size() : kColumnsPerTeam;
  const int groups = team.size() / columns, group = team.rank() / columns;
  for (int64_t first = team.index() * columns; a.SumOf(first) != nullptr; first += team.count() * columns) {
    const int64_t column = first + team.rank() % columns;
    A* const to = a.SumOf(column);
    A sum = 0;
    if (to != nullptr) {
      STEMMA_UNROLL_BY_8
      for (int64_t r = group; r < a.rows; r += groups) sum += a.partials[r * a.row_stride + column];
    }
    shared[team.rank()] = sum;
    team.Sync();
    if (group == 0 && to != nullptr) {
      for (int g = 1; g < groups; ++g) sum += shared[g * columns + team.rank()];
      *to += sum;
    }
    team.Sync();
  }
}

// Adds up what the tiles of a block hold: to[i] = Σ_tile tiles[tile · width + i]. All threads of the block call it when
// their tile is done.
template <typename Team>
STEMMA_DEVICE void JoinTiles(Team& block, const float* tiles, int num_tiles, int64_t width, float* to) {
  block.Sync();
  for (int64_t i = block.rank(); i < width; i += block.size()) {
    float sum = 0;
    for (int tile = 0; tile < num_tiles; ++tile) sum += tiles[tile * width + i];
    to[i] = sum;
  }
}

}  // namespace stemma::worker::cuda
