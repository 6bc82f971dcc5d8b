// FlashAttention: split attention over stock attention calls (flash_calls.h), the CUDA backend's attention op.
//
// A pass over a wave is a few calls, however many suffixes it has: one causal call of all spans over themselves, or
// some where a faster library takes long spans of unequal lengths (own_calls.h), and one without a mask for each
// ancestor, or for several whose K/V are neighbours; an ancestor whose keys a faster library takes but for the last few
// is two. Outputs are merged by log-sum-exp; in backward every call is given the merged output and the merged
// log-sum-exp, which is exact (the paper, Section 3.1; Appendix A). Rows without an ancestor are the causal call's and
// no merge touches them.
//
// Queries are read as [T, H, E]: without a copy where that is how they lie in memory (Backend::queries_by_token). Own
// dk and dv are in the run dtype; an ancestor's are added in Acc to its gk and gv. Owned by the thread that computes.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/backend/attention.h"
#include "worker/backend/cuda/attention/attention_choice.h"
#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/cuda/attention/buckets.h"
#include "worker/backend/cuda/attention/flash_calls.h"
#include "worker/backend/cuda/attention/flash_library.h"
#include "worker/backend/cuda/attention/offsets_cache.h"
#include "worker/backend/cuda/attention/own_calls.h"
#include "worker/backend/cuda/attention/plan_ledger.h"
#include "worker/backend/cuda/attention/wave_calls.h"
#include "worker/backend/host_transfer.h"

namespace stemma::worker::cuda {

struct FlashAttentionOptions {
  AttentionKernels kernels;
  int64_t num_multiprocessors = 1;
  OffsetsCache::Send send = SendBlocking;
  // A faster library for dense calls of admitted shapes; null: none. Outlives the op.
  const FlashCalls* dense = nullptr;
  AdmittedShapes admitted = {};
  // What plans cost of its calls over ancestors' keys, and of those of lone spans: see PlanLedger.
  double flops_of_plans = 0;
  int64_t scores_of_lone_span = kScoresOfLoneSpan;
  int64_t (*chunks)(const PrefixCall& call, int64_t num_multiprocessors) = ChunksOf;
};

// The options of an op with a faster library, for a run's own heads.
struct FasterOptions {
  FlashAttentionOptions checked;  // by the start-up self-check: its small cases make every form of call, and at once
  FlashAttentionOptions in_use;   // what then runs: the same calls, where they are worth it
};
// `options`: those of the op without it. `dense` outlives the ops.
FasterOptions OptionsWithDense(FlashAttentionOptions options, const FlashCalls& dense, const ShapeFamily& heads);

class FlashAttention final : public AttentionOp {
 public:
  // `calls` does what no other may: packed calls, and dense ones that are not admitted. Outlives the op.
  FlashAttention(const FlashCalls& calls, FlashAttentionOptions options);

  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override;
  AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                              const AttentionSaved& saved) const override;

 private:
  // What a wave's calls read, seen by token.
  struct Rows {
    at::Tensor q_THE, k_TKE, v_TKE;
    double scale;
  };
  struct Output {
    at::Tensor o_THE, lse_HT;
  };
  struct OwnOutput {
    OwnCall call;
    Output output;
  };
  struct OutputGradient {
    at::Tensor do_THE, o_THE, lse_HT;
  };
  // Rows [begin, begin + count · rows_of_each).
  struct Chunks {
    int64_t begin, count, rows_of_each;
  };

  static Output Narrow(const Output& output, int64_t begin, int64_t end);
  // Runs for each own call's output of some of rows [begin, end), with the rows that they are.
  using OwnRowsDo = std::function<void(const Output& output, int64_t begin, int64_t end)>;
  static void ForOwnRows(const std::vector<OwnOutput>& own, int64_t begin, int64_t end, const OwnRowsDo& run);
  static ShapeFamily Causal(const Rows& rows);
  static ShapeFamily NotCausal(const Rows& rows);

  bool NeedsComposed(const at::Tensor& q_HTE) const;
  bool HasDense(const at::Tensor& q_THE) const;
  // Whether the causal call of all spans is admitted as a batch.
  bool AdmitsBatch(const std::vector<int64_t>& own_rows, const Rows& rows) const;
  // Whether a span among others may be a causal call of its own.
  bool AdmitsAlone(const Rows& rows, int64_t count) const;
  // How many of the first of so many keys the dense library may be given, in a call of so many rows.
  int64_t AdmittedKeys(int64_t num_rows, int64_t keys, const Rows& rows) const;
  // Tells the ledger which of the calls that a forward begins could be the dense library's.
  void BeginCalls(const AttentionBatch& batch, const Rows& rows) const;
  // How many of the ancestor's first keys the dense library is given.
  int64_t DenseKeys(const AncestorCall& ancestor, const Rows& rows) const;
  // The call; or those over its first keys that the dense library takes, and one over the keys behind them.
  std::vector<AncestorCall> KeyParts(const AncestorCall& ancestor, const Rows& rows) const;
  WaveCalls CallsOf(const AttentionBatch& batch, const Rows& rows) const;
  void SetOffsets(const std::vector<int64_t>& rows, const std::vector<int64_t>& keys, AttentionCall& call) const;

  std::vector<OwnCall> OwnCalls(const WaveCalls& calls, const Rows& rows) const;
  AttentionCall CallOf(const OwnCall& own, const Rows& rows) const;
  std::vector<OwnOutput> OwnForward(const WaveCalls& calls, const Rows& rows) const;
  CallGradients OwnBackward(const WaveCalls& calls, const Rows& rows, const OutputGradient& output) const;
  CallGradients OwnBackward(const OwnCall& own, const Rows& rows, const OutputGradient& output) const;

  std::pair<AttentionCall, const FlashLibrary*> CallOf(const AncestorCall& part, const Rows& rows) const;
  Output AncestorForward(const AncestorCall& ancestor, const Rows& rows) const;
  Output PartForward(const AncestorCall& part, const Rows& rows) const;
  // Adds to dq of its rows, and to gk and gv of its ancestors.
  void PartBackward(const AncestorCall& ancestor, const Rows& rows, const OutputGradient& output,
                    const at::Tensor& dq_THE) const;
  // Does that for some rows of one ancestor, as a batch of chunks over the same keys.
  void ChunkedBackward(const AncestorCall& ancestor, const Rows& rows, const OutputGradient& output,
                       const Chunks& chunks, const at::Tensor& dq_THE) const;

  const FlashAttentionOptions options_;
  const FlashLibrary packed_, dense_;
  const std::shared_ptr<const AttentionOp> composed_;
  mutable OffsetsCache offsets_;
  mutable PlanLedger plans_;
};

}  // namespace stemma::worker::cuda
