// The bytes of Phases A and C, and what stays during Phase B, where context-parallel ranks share the prefixes' rows
// (PrefixShape::regather says how they keep K/V): of the rank that has most of them. Called by
// common/cost/prefix_bytes.cc only, whose functions have the same names. Pure.
#pragma once

#include "common/cost/context_share.h"
#include "common/cost/cost.h"

namespace stemma::context {

// REQUIRES: SharesRows(shape, prefix).
PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix);
PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix);
PhaseBytes PrefixKeptBytes(const ByteShape& shape, const PrefixShape& prefix);
PhaseBytes ForwardPrefixBytes(const ByteShape& shape, const PrefixShape& prefix);
int64_t ForwardKeptBytes(const ByteShape& shape, const PrefixShape& prefix);
int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix);

}  // namespace stemma::context
