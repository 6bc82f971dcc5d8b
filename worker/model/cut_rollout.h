// A suffix that is too long for one rank: context-parallel ranks share its rows as they share those of a prefix, and
// run its wave together (docs/parallelism.md). In each layer a rank's rows attend to the prefix and to all earlier
// rows of the suffix, whoever has them:
//
//   forward    K/V of all rows are gathered when the layer has made its own, before attention, and freed at its end
//   backward   they are gathered again; gK/gV of all rows go to the rows' owners after attention's backward, and the
//              prefix's are added to the hot set's
//
// Between its forward and its backward a rank keeps the K/V of its own rows, as of any wave.
//
// Called by worker/model/wave.h and worker/engine on the engine thread; all ranks of cp make the same calls. Throws
// CollectiveError where a rank has gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "worker/backend/attention.h"
#include "worker/model/layer_context.h"
#include "worker/model/prefix_rows.h"
#include "worker/model/segment_kv.h"

namespace stemma::worker {

// How the ranks share the rows of one suffix.
class CutRollout {
 public:
  // `rows`: of the suffix; two for each rank at least. `context` and its cp outlive it.
  CutRollout(const LayerContext& context, int64_t rows);

  const LayerContext& context() const { return context_; }
  int64_t rows() const { return rows_.rows; }
  int64_t own_rows() const { return rows_.own_rows; }
  const std::vector<ContextPiece>& pieces() const { return rows_.blocks.front().pieces; }  // this rank's
  const PartIndex& index() const { return index_; }

  // Returns two numbers of each of the suffix's rows, [rows] each, of what each rank has of its own, [own_rows] each.
  std::pair<at::Tensor, at::Tensor> GatherNumbers(const at::Tensor& a_T, const at::Tensor& b_T) const;

 private:
  const LayerContext& context_;
  const PrefixRows rows_;
  const PartIndex index_;
};

// One layer of it.
class CutLayerKv final : public SegmentKv {
 public:
  // `prefix`: what the suffix attends to beside itself; nothing defined: P = 1. In a backward its accumulators are
  // there, and k, v are the own rows' K/V, whose exchange this begins and ends; in a forward they are undefined. `cut`
  // outlives it.
  CutLayerKv(const CutRollout& cut, const AncestorKv& prefix, const at::Tensor& k_TKE = {},
             const at::Tensor& v_TKE = {});

  // Returns the spans of the rank's pieces, each behind the rows before it.
  AttentionBatch Batch() const;

  void Made(const at::Tensor& k_TKE, const at::Tensor& v_TKE) const override;
  KvGradients Gradients() const override;

 private:
  int64_t prefix_rows() const { return prefix_.k_CKE.defined() ? prefix_.k_CKE.size(0) : 0; }
  at::Tensor Suffix(const at::Tensor& x_CKE) const { return x_CKE.slice(0, prefix_rows()); }

  const CutRollout& cut_;
  const AncestorKv prefix_;
  mutable AncestorKv all_;  // the prefix's rows, then the suffix's; let go of by Gradients()
};

}  // namespace stemma::worker
