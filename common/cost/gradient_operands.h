// What a weight's gradient holds beside its operands. Internal to common/cost/*_bytes.cc.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cost/byte_shape.h"
#include "common/cost/kernel_blocks.h"

namespace stemma {

inline bool Upcasts(const ByteShape& s) { return s.run_bytes != s.accumulate_bytes; }

// Counts rows of both operands, of so many elements together, that are upcast in a bf16 run.
inline int64_t GradientOperands(const ByteShape& s, int64_t rows, int64_t elements) {
  return Upcasts(s) ? std::min(rows, kUpcastRows) * s.accumulate_bytes * elements : 0;
}

}  // namespace stemma
