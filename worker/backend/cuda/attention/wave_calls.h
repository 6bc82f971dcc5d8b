// Which calls the attention of a wave is cut into: the rows' own keys, and the keys of their ancestors.
//
// Read by FlashAttention. Always: spans without rows and ancestors without keys are in no call; a row is in at most one
// ancestor's call; calls are in the order of their rows.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/backend/attention.h"

namespace stemma::worker::cuda {

// Neighbouring rows over the keys of one ancestor; or over those of several, whose rows of K and V lie behind each
// other in one storage, as sequences of one packed call.
struct AncestorCall {
  struct Sequence {
    int64_t begin, end;  // rows
    AncestorKv kv;
  };
  std::vector<Sequence> sequences;  // one: a dense call
  at::Tensor k_CKE, v_CKE;          // all sequences' keys

  int64_t begin() const { return sequences.front().begin; }
  int64_t end() const { return sequences.back().end; }
  int64_t rows() const { return end() - begin(); }
};

struct WaveCalls {
  std::vector<int64_t> own_rows;  // rows of each span
  std::vector<AncestorCall> ancestors;
};

// `joins` says whether calls of one ancestor may be joined where their keys are neighbours. Dies where spans are not
// adjacent or do not cover the rows.
WaveCalls WaveCallsOf(const AttentionBatch& batch, int64_t num_rows,
                      const std::function<bool(const AncestorCall&)>& joins);

// The rows of both, as a view, where those of `next` lie behind those of `first` in one storage; else undefined.
at::Tensor JoinedRows(const at::Tensor& first, const at::Tensor& next);

// 0, then the running sum.
std::vector<int32_t> OffsetsOf(const std::vector<int64_t>& lengths);

}  // namespace stemma::worker::cuda
