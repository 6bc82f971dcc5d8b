#include "worker/backend/cuda/attention/buckets.h"

#include <glog/logging.h>

#include <algorithm>

namespace stemma::worker::cuda {
namespace {

constexpr int64_t kDenseRowsMax = 65536, kDenseBatchMax = 64, kKeysMultiple = 128;

int64_t RoundUp(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

bool Contains(const AdmittedLengths& lengths, const DenseShape& shape) {
  const int64_t rows = BucketOfRows(shape.rows);
  if (!(lengths.family == shape.family) || shape.batch > lengths.max_batch) return false;
  if (rows < lengths.min_rows || rows > lengths.max_rows) return false;
  if (shape.family.causal) return shape.keys == shape.rows;
  return shape.keys >= lengths.min_keys && shape.keys <= lengths.max_keys && shape.keys % lengths.keys_multiple == 0;
}

}  // namespace

int64_t BucketOfRows(int64_t rows) { return RoundUp(rows, rows <= 4096 ? 128 : rows <= 16384 ? 256 : 1024); }

bool AdmittedShapes::Admits(const DenseShape& shape) const {
  return std::any_of(lengths_.begin(), lengths_.end(), [&](const auto& lengths) { return Contains(lengths, shape); });
}

int64_t AdmittedShapes::MostKeys(const DenseShape& shape) const {
  CHECK(!shape.family.causal) << "a causal call has as many keys as rows";
  int64_t most = 0;
  for (const AdmittedLengths& lengths : lengths_) {
    DenseShape first = shape;
    first.keys = std::min(shape.keys, lengths.max_keys) / lengths.keys_multiple * lengths.keys_multiple;
    if (Contains(lengths, first)) most = std::max(most, first.keys);
  }
  return most;
}

AdmittedShapes ShapesOfHeads(ShapeFamily family) {
  AdmittedShapes shapes;
  for (const bool causal : {false, true}) {
    family.causal = causal;
    shapes.Admit({.family = family,
                  .max_batch = kDenseBatchMax,
                  .min_rows = BucketOfRows(1),
                  .max_rows = kDenseRowsMax,
                  .min_keys = kKeysMultiple,
                  .max_keys = kDenseRowsMax,
                  .keys_multiple = kKeysMultiple});
  }
  return shapes;
}

}  // namespace stemma::worker::cuda
