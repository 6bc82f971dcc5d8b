// Rows of heads as they lie in tensors of any strides.
//
// Private to worker/backend/cuda. Element (h, t, e) lies at data[h · head_stride + t · row_stride + e]; elements of a
// row are adjacent.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/elements.h"

namespace stemma::worker::cuda {

template <typename T>
struct StridedHeads {
  T* data;
  int64_t head_stride, row_stride;

  STEMMA_DEVICE T* Row(int64_t head, int64_t row) const { return data + head * head_stride + row * row_stride; }
};

// Whether every row can be read and written in packs of 16 bytes.
template <typename T>
bool RowsAligned(const StridedHeads<T>& rows) {
  return AllAligned(rows.data) && rows.head_stride % kVector<T> == 0 && rows.row_stride % kVector<T> == 0;
}

}  // namespace stemma::worker::cuda
