#include "worker/backend/cuda/attention/wave_calls.h"

#include <ATen/ops/as_strided.h>
#include <glog/logging.h>

#include <limits>
#include <utility>

namespace stemma::worker::cuda {
namespace {

// Calls of one ancestor each.
std::vector<AncestorCall> SingleCalls(const AttentionBatch& batch) {
  std::vector<AncestorCall> calls;
  int64_t last_ancestor = -1;
  for (const AttentionSpan& span : batch.spans) {
    if (span.begin == span.end) continue;
    const int64_t previous = std::exchange(last_ancestor, span.ancestor);
    if (span.ancestor < 0) continue;
    const AncestorKv& kv = batch.ancestors[static_cast<size_t>(span.ancestor)];
    if (kv.k_CKE.size(0) == 0) continue;
    if (previous == span.ancestor) {
      calls.back().sequences.back().end = span.end;
    } else {
      calls.push_back({{{span.begin, span.end, kv}}, kv.k_CKE, kv.v_CKE});
    }
  }
  return calls;
}

// Appends to `call`, where its rows and its keys are those before `next`'s.
bool Join(AncestorCall& call, const AncestorCall& next) {
  if (call.end() != next.begin()) return false;
  const at::Tensor k_CKE = JoinedRows(call.k_CKE, next.k_CKE), v_CKE = JoinedRows(call.v_CKE, next.v_CKE);
  if (!k_CKE.defined() || !v_CKE.defined()) return false;
  call.sequences.push_back(next.sequences.front());
  call.k_CKE = k_CKE;
  call.v_CKE = v_CKE;
  return true;
}

}  // namespace

WaveCalls WaveCallsOf(const AttentionBatch& batch, int64_t num_rows,
                      const std::function<bool(const AncestorCall&)>& joins) {
  WaveCalls calls;
  int64_t row = 0;
  for (const AttentionSpan& span : batch.spans) {
    CHECK_EQ(span.begin, row) << "spans are adjacent and in order";
    CHECK_GE(span.end, span.begin);
    CHECK_LT(span.ancestor, static_cast<int64_t>(batch.ancestors.size()));
    row = span.end;
    if (span.begin < span.end) calls.own_rows.push_back(span.end - span.begin);
  }
  CHECK_EQ(row, num_rows) << "spans cover all rows";
  bool last_joins = false;
  for (AncestorCall& call : SingleCalls(batch)) {
    const bool this_joins = joins(call);
    if (last_joins && this_joins && Join(calls.ancestors.back(), call)) continue;
    calls.ancestors.push_back(std::move(call));
    last_joins = this_joins;
  }
  return calls;
}

at::Tensor JoinedRows(const at::Tensor& first, const at::Tensor& next) {
  const bool neighbours = first.storage().is_alias_of(next.storage()) && first.strides() == next.strides() &&
                          first.sizes().slice(1) == next.sizes().slice(1) &&
                          first.storage_offset() + first.size(0) * first.stride(0) == next.storage_offset();
  if (!neighbours) return {};
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[0] += next.size(0);
  return at::as_strided(first, sizes, first.strides(), first.storage_offset());
}

std::vector<int32_t> OffsetsOf(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> offsets = {0};
  int64_t sum = 0;
  for (const int64_t length : lengths) {
    sum += length;
    CHECK_LE(sum, std::numeric_limits<int32_t>::max());
    offsets.push_back(static_cast<int32_t>(sum));
  }
  return offsets;
}

}  // namespace stemma::worker::cuda
