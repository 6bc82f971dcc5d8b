// The bytes that a cluster's prefixes need above weights, gradients and optimizer state: in Phases A and C, and what
// stays during Phase B. Torch-free arithmetic from shapes: the planner decides by it, the worker's tests hold it to
// measured bytes. Where context-parallel ranks share the prefixes' rows, they are those of the rank that has most.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/cost/byte_shape.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

class ContextShare;  // common/cost/context_share.h

// The prefixes of a cluster.
struct PrefixShape {
  int64_t rows = 0;                   // of all prefixes, packed
  std::vector<int64_t> lengths = {};  // of each, in order; empty: it is one
  int64_t block_rows = 0;             // computed so many at a time; 0: at once
  v1::TapePolicy policy = v1::S0;
  bool offload = false;  // the tape is in host memory, but for
  int64_t headroom_bytes = 0;
  // Where context-parallel ranks share the rows: each keeps K/V and gK/gV of its own ones, and all are gathered again,
  // layer by layer, wherever they are read. Else each rank holds those of all rows.
  bool regather = false;
  // How ranks share these lengths in these blocks, where a caller has counted it before; null: it is counted when asked
  // for.
  std::shared_ptr<const ContextShare> share = nullptr;
};

PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix);   // Phase A
PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix);  // Phase C
// Counts what the prefixes keep on the device in Phase B, whatever the wave.
PhaseBytes PrefixKeptBytes(const ByteShape& shape, const PrefixShape& prefix);
// Counts the bytes of the prefixes' tape in host memory, where it is offloaded.
int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix);

// Count Phase A of a forward-only pass, and the K/V that it leaves to Phase B. It keeps no tape and no gradients: what
// the layer at work made is dropped with it, whatever the policy.
PhaseBytes ForwardPrefixBytes(const ByteShape& shape, const PrefixShape& prefix);
int64_t ForwardKeptBytes(const ByteShape& shape, const PrefixShape& prefix);

}  // namespace stemma
