// The factors of rows and columns in the digest of weights (worker/model/weights_digest.h). Included by the host's and
// the device's kernels that add words up with them.
//
// All are odd: an element that changes alone always changes the sum. They are part of what checkpoints keep, so they
// never change.
#pragma once

#include <cstdint>

#include "common/base/split_mix.h"

namespace stemma::worker {

constexpr uint64_t RowFactor(uint64_t row) { return MixedBits(0x2545f4914f6cdd1d + row) | 1; }
constexpr uint64_t ColumnFactor(uint64_t column) { return MixedBits(0x9e3779b97f4a7c15 + column) | 1; }

}  // namespace stemma::worker
