// What a wave's layers have beside them where context-parallel ranks gather the prefixes' K/V again
// (PrefixShape::regather). Pure.
#pragma once

#include "common/cost/prefix_bytes.h"
#include "common/cost/wave_bytes.h"

namespace stemma {

// Returns 0 where each rank holds K/V of all rows.
BesideLayer RegatherBytes(const ByteShape& shape, const PrefixShape& prefix);

}  // namespace stemma
