// Transposes a few rows in registers. Private to the attention loops, which are compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "worker/backend/cpu/tile_product.h"

namespace stemma::worker::kernels::STEMMA_ISA {

// Exchanges blocks of kStep lanes between a and b: a's odd blocks with b's even ones.
template <int kStep, typename T, std::size_t... kLane>
static inline void ExchangeLanes(Vector<T>& a, Vector<T>& b, std::index_sequence<kLane...>) {
  constexpr int kCount = static_cast<int>(kLanes<T>);
  const Vector<T> even =
      __builtin_shufflevector(a, b, ((kLane & kStep) == 0 ? int{kLane} : kCount + int{kLane} - kStep)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStep) == 0 ? int{kLane} + kStep : kCount + int{kLane})...);
  a = even;
}

// Exchanges element (i, j) with (j, i), in blocks of kStep and then of half of it.
template <int kStep, typename T>
static inline void TransposeVectors(Vector<T> (&rows)[kLanes<T>]) {
  if constexpr (kStep > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
      if ((i & kStep) == 0) {
        ExchangeLanes<kStep, T>(rows[i], rows[i + kStep], std::make_index_sequence<kLanes<T>>());
      }
    }
    TransposeVectors<kStep / 2, T>(rows);
  }
}

// to[e * to_row + r] = from[r * from_row + e] for r < count, e < columns; 0 for the other lanes of a vector.
template <typename T>
static inline void TransposeRows(const T* from, int64_t from_row, int64_t count, int64_t columns, T* to,
                                 int64_t to_row) {
  int64_t e = 0;
  for (; count == kLanes<T> && e + kLanes<T> <= columns; e += kLanes<T>) {
    Vector<T> rows[kLanes<T>];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) rows[i] = LoadVector(from + i * from_row + e);
    TransposeVectors<kLanes<T> / 2, T>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) StoreVector(to + (e + i) * to_row, rows[i]);
  }
  for (; e < columns; ++e) {
    for (int64_t r = 0; r < kLanes<T>; ++r) to[e * to_row + r] = r < count ? from[r * from_row + e] : T(0);
  }
}

}  // namespace stemma::worker::kernels::STEMMA_ISA
