// How a team walks over the elements of a row, V at a time.
//
// Private to worker/backend/cuda/kernels. Consecutive threads take consecutive packs. A row is read from memory once:
// the first kHeldPacks packs of a thread stay in its registers between the passes over a row; what is beyond them (rows
// wider than kHeldPacks · V · size()) is read again, which a cache that holds a row answers.
#pragma once

#include "worker/backend/cuda/kernels/elements.h"

namespace stemma::worker::cuda {

inline constexpr int kHeldPacks = 2;

// Calls held(c, i) for the packs that a thread keeps, the first kHeld, and rest(i) for the others; i: the pack's first
// element.
template <int V, int kHeld = kHeldPacks, typename Team, typename Held, typename Rest>
STEMMA_DEVICE void ForPacks(const Team& team, int64_t width, const Held& held, const Rest& rest) {
  const int64_t step = static_cast<int64_t>(team.size()) * V;
  int64_t i = static_cast<int64_t>(team.rank()) * V;
  STEMMA_UNROLL
  for (int c = 0; c < kHeld; ++c, i += step) {
    if (i < width) held(c, i);
  }
  // Rows as wide as that are few, and registers for several packs would slow down all.
  STEMMA_NO_UNROLL
  for (; i < width; i += step) rest(i);
}

// Calls f(i) for each pack of a thread.
template <int V, typename Team, typename F>
STEMMA_DEVICE void ForEachPack(const Team& team, int64_t width, const F& f) {
  const int64_t step = static_cast<int64_t>(team.size()) * V;
  for (int64_t i = static_cast<int64_t>(team.rank()) * V; i < width; i += step) f(i);
}

// Calls f(row, i) for each pack of `rows` rows of `width` elements, dealt to teams in tiles of this many packs a
// thread.
inline constexpr int kPacksPerTile = 2;
template <int V, typename Team>
STEMMA_DEVICE int64_t TileWidth(const Team& team) {
  return static_cast<int64_t>(team.size()) * V * kPacksPerTile;
}
template <int V, typename Team, typename F>
STEMMA_DEVICE void ForPacksOfRows(const Team& team, int64_t rows, int64_t width, const F& f) {
  const int64_t tile_width = TileWidth<V>(team), tiles = (width + tile_width - 1) / tile_width;
  for (int64_t item = team.index(); item < rows * tiles; item += team.count()) {
    const int64_t row = item / tiles, first = (item - row * tiles) * tile_width + static_cast<int64_t>(team.rank()) * V;
    STEMMA_UNROLL
    for (int c = 0; c < kPacksPerTile; ++c) {
      const int64_t i = first + static_cast<int64_t>(c) * team.size() * V;
      if (i < width) f(row, i);
    }
  }
}

}  // namespace stemma::worker::cuda
