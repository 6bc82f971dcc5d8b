// FlashAttention: split attention over stock attention calls (flash_calls.h), the CUDA backend's attention op.
//
// A pass over a wave is a few calls, however many suffixes it has: one causal call of all spans over themselves, and
// one without a mask for each ancestor, or for several whose K/V are neighbours; an ancestor whose keys a faster
// library takes but for the last few is two. Outputs are merged by log-sum-exp; in backward every call is given the
// merged output and the merged log-sum-exp, which is exact (the paper, Section 3.1; Appendix A). Rows without an
// ancestor are the causal call's and no merge touches them.
//
// Queries are read as [T, H, E]: without a copy where that is how they lie in memory (Backend::queries_by_token). Own
// dk and dv are in the run dtype; an ancestor's are added in Acc to its gk and gv. Owned by the thread that computes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/backend/attention.h"
#include "worker/backend/cuda/attention/attention_choice.h"
#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/cuda/attention/buckets.h"
#include "worker/backend/cuda/attention/flash_calls.h"
#include "worker/backend/cuda/attention/offsets_cache.h"
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
  double flops_of_plans = 0;  // of calls over ancestors' keys by that library: see PlanLedger
  int64_t (*chunks)(const PrefixCall& call, int64_t num_multiprocessors) = ChunksOf;
};

class FlashAttention final : public AttentionOp {
 public:
  // `calls` does what no other may: packed calls, and dense ones that are not admitted. Outlives the op.
  FlashAttention(const FlashCalls& calls, FlashAttentionOptions options);

  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override;
  AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                              const AttentionSaved& saved) const override;

 private:
  // Random state of a library's forward calls, one for each device. AttentionSaved has no room for it, and without
  // dropout no kernel reads it: any forward's will do for any backward.
  class RngStates {
   public:
    void Keep(at::Device device, const RngState& rng);
    const RngState& Get(at::Device device) const;

   private:
    std::vector<std::pair<at::Device, RngState>> states_;
  };

  // A library with what its backwards read of its forwards.
  struct Library {
    const FlashCalls* calls;
    mutable RngStates rng;

    CallOutput Forward(const AttentionCall& call) const;
    CallGradients Backward(const AttentionCall& call, const at::Tensor& dout, const at::Tensor& out,
                           const at::Tensor& lse) const;
  };

  // What a wave's calls read, seen by token.
  struct Rows {
    at::Tensor q_THE, k_TKE, v_TKE;
    double scale;
  };
  struct Output {
    at::Tensor o_THE, lse_HT;
  };
  struct OutputGradient {
    at::Tensor do_THE, o_THE, lse_HT;
  };
  // Rows [begin, begin + count · rows_of_each).
  struct Chunks {
    int64_t begin, count, rows_of_each;
  };

  bool NeedsComposed(const at::Tensor& q_HTE) const;
  bool HasDense(const at::Tensor& q_THE) const;
  // Whether the causal call of so many spans of so many rows is admitted.
  bool RunsOwnDense(const Rows& rows, int64_t batch, int64_t count) const;
  // How many of the ancestor's first keys the dense library may be given.
  int64_t AdmittedKeys(const AncestorCall& ancestor, const Rows& rows) const;
  // Tells the ledger which of the calls that a forward begins could be the dense library's.
  void BeginCalls(const AttentionBatch& batch, const Rows& rows) const;
  // How many of the ancestor's first keys the dense library is given.
  int64_t DenseKeys(const AncestorCall& ancestor, const Rows& rows) const;
  // The call, or one over its first keys and one over those behind them.
  std::vector<AncestorCall> KeyParts(const AncestorCall& ancestor, const Rows& rows) const;
  WaveCalls CallsOf(const AttentionBatch& batch, const Rows& rows) const;
  void SetOffsets(const std::vector<int64_t>& rows, const std::vector<int64_t>& keys, AttentionCall& call) const;

  // The causal call of all spans, dense where they are one, or equally long and admitted.
  std::pair<AttentionCall, const Library*> OwnCall(const WaveCalls& calls, const Rows& rows) const;
  Output OwnForward(const WaveCalls& calls, const Rows& rows) const;
  CallGradients OwnBackward(const WaveCalls& calls, const Rows& rows, const OutputGradient& output) const;

  std::pair<AttentionCall, const Library*> CallOf(const AncestorCall& part, const Rows& rows) const;
  Output AncestorForward(const AncestorCall& ancestor, const Rows& rows) const;
  Output PartForward(const AncestorCall& part, const Rows& rows) const;
  // Adds to dq of its rows, and to gk and gv of its ancestors.
  void PartBackward(const AncestorCall& ancestor, const Rows& rows, const OutputGradient& output,
                    const at::Tensor& dq_THE) const;
  // Does that for some rows of one ancestor, as a batch of chunks over the same keys.
  void ChunkedBackward(const AncestorCall& ancestor, const Rows& rows, const OutputGradient& output,
                       const Chunks& chunks, const at::Tensor& dq_THE) const;

  const FlashAttentionOptions options_;
  const Library packed_, dense_;
  const std::shared_ptr<const AttentionOp> composed_;
  mutable OffsetsCache offsets_;
  mutable PlanLedger plans_;
};

}  // namespace stemma::worker::cuda
