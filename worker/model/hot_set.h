// The hot set of a cluster: K/V of its prefixes and their gradients in all layers, from Phase A to Phase C. Waves see
// it as worker/model/prefix_kv.h; Phases A and C (worker/model/prefix.cc) fill and empty it through what is here:
//
//   Phase A   blocks in order, layers ascending      Begin(kForward)   Share    Keep
//             after the last block                   MakeGradients, unless the pass is forward-only
//   Phase C   blocks in reverse, with policy S5 each runs forward again first:
//             layers ascending                       Begin(kAgain)     Keep
//             then backward, layers descending       Begin(kBackward)  Restore  Gradients
//             the first block, before layer l        Free(l + 1)
//
// The last layer's backward has no Restore. A rank without rows in a block makes the calls all the same, without the
// layers: these are the places of collectives.
//
// Implementations: LocalHotSet (this rank runs and holds all rows), HeldHotSet and GatheredHotSet (context-parallel
// ranks run some rows each, and hold all of them, or their own: worker/model/context_hot_sets.h). Engine thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/model/layer_context.h"
#include "worker/model/prefix_kv.h"
#include "worker/model/prefix_rows.h"
#include "worker/model/segment_kv.h"

namespace stemma::worker {

enum class PrefixPass { kForward, kAgain, kBackward };

class HotSet : public PrefixKv {
 public:
  // A layer of a block comes next: what its rows attend to can be got afterwards.
  virtual void Begin(const PrefixBlockRows& block, int64_t layer, PrefixPass pass) = 0;
  // The layer has made K and V of the rank's rows; its attention comes next.
  virtual void Share(const PrefixBlockRows& block, int64_t layer, const at::Tensor& k_TKE, const at::Tensor& v_TKE) = 0;
  // The layer has run. K and V become what its tape holds of them: views of the hot set, or nothing.
  virtual void Keep(const PrefixBlockRows& block, int64_t layer, PrefixPass pass, at::Tensor& k_TKE,
                    at::Tensor& v_TKE) = 0;
  // Gives K and V back to a tape whose backward comes next.
  virtual void Restore(const PrefixBlockRows& block, int64_t layer, at::Tensor& k_TKE, at::Tensor& v_TKE) = 0;
  // Returns all gradients of the block's own rows but those that its layer has not added to the hot set.
  virtual KvGradients Gradients(const PrefixBlockRows& block, int64_t layer) = 0;
  // Frees a layer, of which no block is left.
  virtual void Free(int64_t layer) = 0;
  // Gives it gK/gV: zeros.
  virtual void MakeGradients(const LayerContext& context) = 0;
};

// All rows are this rank's own, and gradients are added in place. A rank that helps with a split group fills the K/V
// with another's (BorrowedPrefix() in worker/model/prefix.h).
class LocalHotSet : public HotSet {
 public:
  explicit LocalHotSet(PrefixRows prefix_rows) : rows_(std::move(prefix_rows)) {}

  void Prefetch(int64_t /*layer*/) override {}
  AncestorKv Get(int64_t layer, int64_t prefix, PrefixUse use) override;
  void Reduce(int64_t /*layer*/) override {}
  void Rest() override {}

  void Begin(const PrefixBlockRows& /*block*/, int64_t /*layer*/, PrefixPass /*pass*/) override {}
  void Share(const PrefixBlockRows& /*block*/, int64_t /*layer*/, const at::Tensor& /*k_TKE*/,
             const at::Tensor& /*v_TKE*/) override {}
  void Keep(const PrefixBlockRows& block, int64_t layer, PrefixPass pass, at::Tensor& k_TKE,
            at::Tensor& v_TKE) override;
  void Restore(const PrefixBlockRows& /*block*/, int64_t /*layer*/, at::Tensor& /*k_TKE*/,
               at::Tensor& /*v_TKE*/) override {}
  KvGradients Gradients(const PrefixBlockRows& block, int64_t layer) override;
  void Free(int64_t layer) override;
  void MakeGradients(const LayerContext& context) override;

  int64_t rows() const { return rows_.rows; }

  std::vector<at::Tensor> k_TKE, v_TKE;    // per layer, of all rows; the tape may hold views of them
  std::vector<at::Tensor> gk_TKE, gv_TKE;  // per layer; empty in a forward-only pass

 protected:
  const PrefixRows rows_;

 private:
  void Store(const PrefixBlockRows& block, int64_t layer, std::vector<at::Tensor>& of_layers, at::Tensor& kv_TKE) const;
};

}  // namespace stemma::worker
