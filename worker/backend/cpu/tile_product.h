// Products of blocks of matrices, a tile of sums at a time in registers. Private to the attention loops, which are
// compiled once per instruction set: the size of a tile is the set's, and everything here is in the set's namespace.
//
// Always holds: one element of a product is one sum, its terms added in the order of the inner index, wherever the
// element lies in a tile and whatever the size of the block. What a row gets does not depend on its neighbours.
#pragma once

#include <cstdint>

namespace stemma::worker::kernels::STEMMA_ISA {

// A tile is so many rows by two vectors: as many sums as the set has registers for, beside those of the operands.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 12;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileRows = 6;
#else
constexpr int kVectorBytes = 16, kTileRows = 6;
#endif

template <typename T>
struct VectorOf {
  using Type __attribute__((vector_size(kVectorBytes))) = T;
};
template <typename T>
using Vector = typename VectorOf<T>::Type;

template <typename T>
constexpr int64_t kLanes = kVectorBytes / sizeof(T);

// What a comparison of vectors gives: a number as wide as T in each lane, all bits or none.
template <typename T>
using VectorMask = decltype(Vector<T>{} < Vector<T>{});

// Right-hand operands are packed in panels of so many columns, a tile's width: row k of a panel is adjacent to row k
// + 1.
template <typename T>
constexpr int64_t kPanel = 2 * kLanes<T>;

template <typename T>
static inline Vector<T> LoadVector(const T* x) {
  Vector<T> v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}

template <typename T>
static inline void StoreVector(T* x, Vector<T> v) {
  __builtin_memcpy(x, &v, sizeof v);
}

// A tile's sums: rows by vectors.
template <typename T, int kRows, int kVectors>
struct Tile {
  Vector<T> sums[kRows][kVectors];
};

// A step from one element of an operand to the next that is known when this is compiled. Rows at fixed distances are
// reached from one pointer: twelve pointers would not fit in registers.
template <int64_t kElements>
struct Fixed {
  constexpr operator int64_t() const { return kElements; }  // NOLINT(google-explicit-constructor)
};

// Left-hand operand: element (i, k) is data[i * row + k * inner]. Each step is Fixed or an int64_t.
template <typename T, typename Row, typename Inner>
struct Left {
  const T* data;
  Row row;
  Inner inner;
};

template <int kRows, int kVectors, typename T>
static inline void ClearTile(Tile<T, kRows, kVectors>& tile) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) tile.sums[i][v] = Vector<T>{};
  }
}

template <int kRows, int kVectors, typename T>
static inline void LoadTile(const T* x, int64_t row, Tile<T, kRows, kVectors>& tile) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) tile.sums[i][v] = LoadVector(x + i * row + v * kLanes<T>);
  }
}

template <int kRows, int kVectors, typename T>
static inline void StoreTile(const Tile<T, kRows, kVectors>& tile, T* x, int64_t row) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) StoreVector(x + i * row + v * kLanes<T>, tile.sums[i][v]);
  }
}

// tile += left panel, over `count` inner elements.
template <int kRows, int kVectors, typename T, typename Row, typename Inner>
static inline void AddProducts(Left<T, Row, Inner> left, const T* panel, int64_t count,
                               Tile<T, kRows, kVectors>& tile) {
  for (int64_t k = 0; k < count; ++k) {
    Vector<T> right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = LoadVector(panel + v * kLanes<T>);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const T x = left.data[i * left.row];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) tile.sums[i][v] += x * right[v];
    }
    left.data += left.inner;
    panel += kPanel<T>;
  }
}

// Calls use.operator()<rows>(first row) for tiles that cover rows [begin, end): as many of kRows as there are, then
// smaller ones.
template <int kRows, typename Use>
static inline void ForTiles(int64_t begin, int64_t end, const Use& use) {
  for (; begin + kRows <= end; begin += kRows) use.template operator()<kRows>(begin);
  if constexpr (kRows > 1) ForTiles<(kRows > 8 ? 8 : kRows > 4 ? 4 : kRows / 2)>(begin, end, use);
}

// Where one tile's sums go: of each row `columns` elements, at most a panel's, are written, and whatever follows them
// is left alone.
template <typename T>
struct TileRows {
  T* data;
  int64_t row, columns;
};

// out (+)= left panel, over `count` inner elements, for one tile.
template <int kRows, int kVectors, typename T, typename Row, typename Inner>
static inline void MultiplyTile(Left<T, Row, Inner> left, const T* panel, int64_t count, bool add, TileRows<T> out) {
  T* const c = out.data;
  const int64_t c_row = out.row, columns = out.columns;
  Tile<T, kRows, kVectors> tile;
  if (columns == kVectors * kLanes<T>) {
    if (add) {
      LoadTile(c, c_row, tile);
    } else {
      ClearTile(tile);
    }
    AddProducts(left, panel, count, tile);
    StoreTile(tile, c, c_row);
    return;
  }
  T whole[kRows * kVectors * kLanes<T>] = {};
  for (int64_t i = 0; add && i < kRows; ++i) {
    for (int64_t j = 0; j < columns; ++j) whole[i * kVectors * kLanes<T> + j] = c[i * c_row + j];
  }
  LoadTile(whole, kVectors * kLanes<T>, tile);
  AddProducts(left, panel, count, tile);
  StoreTile(tile, whole, kVectors * kLanes<T>);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * c_row + j] = whole[i * kVectors * kLanes<T> + j];
  }
}

}  // namespace stemma::worker::kernels::STEMMA_ISA
