// What context-parallel ranks exchange: bytes that the rank sends, by phase. Pure; the planner counts seconds by it,
// the worker's tests hold it to what communicators count. Everything is 0 where there is one rank, or no prefix.
//
// K and V of a layer travel together in one gathering, their gradients in one reduction; every rank's part is padded to
// the largest. How often, by PrefixShape::regather:
//              held by all ranks                         gathered again
//   Phase A    K/V once a layer and block                K/V once a layer and block, but in the last layer; of all
//                                                        blocks' rows each time
//   Phase B    -                                         K/V once a layer forward and once backward, gK/gV once, for
//                                                        each round of waves
//   Phase C    gK/gV once a layer and block              K/V and gK/gV once a layer and block, but in the last layer;
//                                                        with S5 the layers that run again gather K/V once more
// A rollout that is cut by rows: K/V of its suffix once a layer forward and once backward, gK/gV once, and where the
// head is, log-probs and entropies once. All ranks send as much, whatever rows they have.
#pragma once

#include <cstdint>

#include "common/cost/prefix_bytes.h"

namespace stemma {

// By the names of the collectives.
struct ContextSentBytes {
  int64_t prefix_kv = 0;                  // gathers, in the run dtype
  int64_t prefix_gradients = 0;           // reductions to the rows' owners, in the accumulate dtype
  int64_t cut_kv = 0, cut_gradients = 0;  // the same of rollouts that are cut by rows
  int64_t cut_log_probs = 0;              // gathers, in fp64
  int64_t collectives = 0;

  int64_t total() const { return prefix_kv + prefix_gradients + cut_kv + cut_gradients + cut_log_probs; }
  ContextSentBytes& operator+=(const ContextSentBytes& other);
  bool operator==(const ContextSentBytes&) const = default;
};

// Phases A and C. `prefix.policy` is what Phase A keeps.
ContextSentBytes PrefixForwardContextSent(const ByteShape& shape, const PrefixShape& prefix);
ContextSentBytes PrefixBackwardContextSent(const ByteShape& shape, const PrefixShape& prefix);

// One round of Phase B, in which each rank computes at most one wave.
ContextSentBytes RoundForwardContextSent(const ByteShape& shape, const PrefixShape& prefix);
ContextSentBytes RoundBackwardContextSent(const ByteShape& shape, const PrefixShape& prefix);

// The wave of a rollout of so many suffix rows that all ranks run together.
ContextSentBytes CutForwardContextSent(const ByteShape& shape, int64_t rows);
ContextSentBytes CutBackwardContextSent(const ByteShape& shape, int64_t rows);

}  // namespace stemma
