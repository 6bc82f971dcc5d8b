// What a group costs in parts, and what of it travels where ranks share it. Pure.
#pragma once

#include <cstdint>

#include "common/cost/byte_shape.h"
#include "server/planner/group_split.h"
#include "server/planner/memory_chooser.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {

// Between the owner of a split group and one helper: K and V of all layers of the shape, one stage's or the model's, in
// the run's dtype, and their gradients in their accumulators' dtype, which a forward-only pass does not have.
struct PartBytes {
  int64_t kv = 0, gradients = 0;
};
PartBytes PartBytesOf(const ByteShape& shape, int64_t prefix_rows, bool forward_only);

// What they take from one copy of the model to another: a message for K and one for V of each layer, after a word that
// says whether they come. Returns 0 for gradients in a forward-only pass.
struct PartSeconds {
  double send_s = 0, return_s = 0;
};
PartSeconds PartSecondsOf(const MemoryOptions& options, const ByteShape& shape, int64_t prefix_rows);

// Whether copies of the model may share the group: it is computed with reuse, and has rollouts for two; and it fits
// where each of context-parallel ranks holds its K/V.
bool MaySplit(MemoryChooser& chooser, const PackingGroup& packing);

// REQUIRES: MaySplit. A group that does not fit the budget costs nothing: packing refuses it.
SplitCosts SplitCostsOf(MemoryChooser& chooser, const PackingGroup& packing);

// The part of the group that has these of its members.
PackingGroup PartOf(const PackingGroup& packing, const std::vector<uint32_t>& members, bool borrowed);

}  // namespace stemma::server
