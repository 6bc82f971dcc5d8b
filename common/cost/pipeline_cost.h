// What pipeline stages send each other: bytes and messages that one rank of a stage sends, by operation. Pure; the
// planner counts seconds by it, the worker's tests hold it to what communicators count.
//
// Between layers there is one tensor, rows as wide as the model in the run dtype, of which a tensor-parallel rank has
// its part. A forward sends it to the next stage, a backward its gradient to the stage before: one message for each
// wave, and for each block of a cluster's prefixes. The last stage sends nothing forward, the first one nothing
// backward. Ranks send to the rank that has the same place on the other axes.
#pragma once

#include <cstdint>

#include "common/cost/context_share.h"
#include "common/cost/prefix_bytes.h"

namespace stemma {

struct PipelineSentBytes {
  int64_t forward = 0, backward = 0;
  int64_t forward_messages = 0, backward_messages = 0;

  PipelineSentBytes& operator+=(const PipelineSentBytes& other);
  bool operator==(const PipelineSentBytes&) const = default;
};

// Returns the bytes of so many rows between layers, on one rank.
int64_t RowsBetweenStagesBytes(const ByteShape& shape, int64_t rows);

// A wave's forward and backward. `rows`: all of them, prefixes of dense trajectories included.
PipelineSentBytes WavePipelineSent(const ByteShape& stage, int64_t rows);

// Phases A and C. `cp_rank`: with its own rows of the prefixes.
PipelineSentBytes PrefixPipelineSent(const ByteShape& stage, const PrefixShape& prefix,
                                     int64_t cp_rank = kLargestCpRank);

}  // namespace stemma
