// Buckets of shapes: to how many rows a dense call is padded, and which shapes the start-up self-check admitted.
//
// A library that makes a plan for every exact shape sees few shapes where rows are padded up to a bucket. Pure.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace stemma::worker::cuda {

// Rounds rows up to their bucket: the next multiple of 128 up to 4,096 rows, of 256 up to 16,384, of 1,024 beyond. At
// most one part in sixteen is padding from 2,048 rows on.
int64_t BucketOfRows(int64_t rows);

// What kernels of a dense call are chosen by, lengths aside.
struct ShapeFamily {
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  c10::ScalarType dtype = c10::ScalarType::BFloat16;
  bool causal = false;

  bool operator==(const ShapeFamily&) const = default;
};

struct DenseShape {
  ShapeFamily family;
  int64_t batch = 0, rows = 0, keys = 0;  // not padded
};

// Lengths that were found right for a family. Rows are compared as buckets, so that what was tried is what runs; keys
// as they are, as they are not padded but in a causal call, where they are the rows.
struct AdmittedLengths {
  ShapeFamily family;
  int64_t max_batch = 1;
  int64_t min_rows = 0, max_rows = 0;  // buckets, both included
  int64_t min_keys = 0, max_keys = 0;  // both included; not read of a causal family
  int64_t keys_multiple = 1;           // keys are a multiple of it
};

// The shapes that a library may be called with. None at first; the self-check adds what it saw to be right.
class AdmittedShapes {
 public:
  void Admit(const AdmittedLengths& lengths) { lengths_.push_back(lengths); }
  bool Admits(const DenseShape& shape) const;
  // Returns the most of the first keys that a call without a mask may have; 0: none.
  int64_t MostKeys(const DenseShape& shape) const;
  bool empty() const { return lengths_.empty(); }

 private:
  std::vector<AdmittedLengths> lengths_;
};

// The shapes of a run's own heads, which the self-check tries at some lengths: causal calls and calls without a mask,
// whatever `family` says. Of a prefix's keys, which cannot be padded, the library is given those up to a multiple of
// 128.
AdmittedShapes ShapesOfHeads(ShapeFamily family);

}  // namespace stemma::worker::cuda
