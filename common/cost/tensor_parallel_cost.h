// Bytes that one of several tensor-parallel ranks sends in a phase, and in how many collectives, from shapes alone. All
// ranks of a copy send as much. Counted as CollectiveBytes() of worker/parallel/collective.h counts: of what the ranks
// hold together a rank sends all but its own part. Pure; the worker's tests hold it to the bytes that communicators
// count. Everything is 0 where there is one rank.
//
// What is exchanged where stands in worker/ops/tensor_parallel.h, vocabulary.h and head.h. Rows are padded to a
// multiple of the ranks. A policy that drops a norm's output gathers it again in backward.
#pragma once

#include <cstdint>

#include "common/cost/context_share.h"
#include "common/cost/prefix_bytes.h"
#include "common/model/model_shard.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

// By the names of the collectives. Partial gradients are a step's and not a phase's.
struct TensorSentBytes {
  int64_t rows = 0;        // gathers of rows, in the run dtype
  int64_t row_sums = 0;    // scatters of their sums, each rank's part in the run dtype
  int64_t vocabulary = 0;  // numbers of the head's rows
  // Collectives, by themselves: of rows, and of the chunks of the head.
  int64_t row_collectives = 0, head_collectives = 0;

  int64_t total() const { return rows + row_sums + vocabulary; }
  TensorSentBytes& operator+=(const TensorSentBytes& other);
};

// Phases A and C. `prefix.policy` is what Phase A keeps. `cp_rank`: with its own rows of the prefixes; of several ranks
// those with fewer send less.
TensorSentBytes PrefixForwardTensorSent(const ByteShape& shape, const PrefixShape& prefix,
                                        int64_t cp_rank = kLargestCpRank);
TensorSentBytes PrefixBackwardTensorSent(const ByteShape& shape, const PrefixShape& prefix,
                                         int64_t cp_rank = kLargestCpRank);

// One wave's forward, with the head: that of a step asks for entropies, a forward-only pass may.
TensorSentBytes WaveForwardTensorSent(const ByteShape& shape, int64_t rows, int64_t kv_only_rows, bool entropy);
// One wave's backward, with the head's.
TensorSentBytes WaveBackwardTensorSent(const ByteShape& shape, int64_t rows, int64_t kv_only_rows,
                                       v1::TapePolicy policy);

// Once a step: gradients that each rank has a part of, which all tensor-parallel ranks add up; those of K/V heads,
// which the neighbours that hold the same ones do; and that of a tied embedding, which the first and the last pipeline
// stage do.
struct PartialGradientBytes {
  int64_t all = 0, kv = 0, stages = 0;
};
PartialGradientBytes PartialGradientsSent(const ModelShard& shard, int64_t accumulate_bytes);

}  // namespace stemma
