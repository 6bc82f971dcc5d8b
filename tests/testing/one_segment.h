// The sums of a single segment, for tests that count one suffix or one prefix.
#pragma once

#include <cstdint>

#include "common/cost/flops.h"

namespace stemma::testing {

inline SegmentSums OneSegment(int64_t ancestor_rows, int64_t rows) {
  SegmentSums sums;
  sums.Add(ancestor_rows, rows);
  return sums;
}

}  // namespace stemma::testing
