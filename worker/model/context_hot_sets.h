// Hot sets of context-parallel ranks, each of which runs some rows of a cluster's prefixes in Phases A and C, and some
// of its suffixes in Phase B (the paper, Sections 3.4 and 4.4).
//
//   HeldHotSet      every rank holds K/V and gK/gV of all rows. K/V are gathered once, in Phase A, gradients summed
//                   once, in Phase C, each layer by layer; Phase B exchanges nothing.
//   GatheredHotSet  a rank holds those of its own rows. Every wave gathers a layer's K/V while the layer before it
//                   runs, and takes gradients back to their owners while the layer after it runs; so do the phases of
//                   the prefixes. At most two layers of all rows are here at once.
//
// In the last layer rows of a prefix attend to nothing, so GatheredHotSet exchanges nothing there in Phases A and C.
// The tape holds no K/V of its own: they are taken from the hot set again in Phase C.
//
// Made by worker/model/prefix.cc where an axis cp has several ranks; all of them make the same calls. Throws
// CollectiveError where a rank has gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "worker/model/context_exchange.h"
#include "worker/model/hot_set.h"

namespace stemma::worker {

class HeldHotSet final : public LocalHotSet {
 public:
  // `context` and its cp outlive it.
  HeldHotSet(const LayerContext& context, PrefixRows rows);

  void Begin(const PrefixBlockRows& block, int64_t layer, PrefixPass pass) override;
  void Share(const PrefixBlockRows& block, int64_t layer, const at::Tensor& k_TKE, const at::Tensor& v_TKE) override;
  void Keep(const PrefixBlockRows& block, int64_t layer, PrefixPass pass, at::Tensor& k_TKE,
            at::Tensor& v_TKE) override;
  void Restore(const PrefixBlockRows& block, int64_t layer, at::Tensor& k_TKE, at::Tensor& v_TKE) override;
  KvGradients Gradients(const PrefixBlockRows& block, int64_t layer) override;

 private:
  const PartIndex& IndexOf(const PrefixBlockRows& block) const;

  const LayerContext context_;
  std::vector<PartIndex> indices_;  // of each block
};

class GatheredHotSet final : public HotSet {
 public:
  GatheredHotSet(const LayerContext& context, PrefixRows rows);

  void Prefetch(int64_t layer) override;
  AncestorKv Get(int64_t layer, int64_t prefix, PrefixUse use) override;
  void Reduce(int64_t layer) override;
  void Rest() override;

  void Begin(const PrefixBlockRows& block, int64_t layer, PrefixPass pass) override;
  void Share(const PrefixBlockRows& block, int64_t layer, const at::Tensor& k_TKE, const at::Tensor& v_TKE) override;
  void Keep(const PrefixBlockRows& block, int64_t layer, PrefixPass pass, at::Tensor& k_TKE,
            at::Tensor& v_TKE) override;
  void Restore(const PrefixBlockRows& block, int64_t layer, at::Tensor& k_TKE, at::Tensor& v_TKE) override;
  KvGradients Gradients(const PrefixBlockRows& block, int64_t layer) override;
  void Free(int64_t layer) override;
  void MakeGradients(const LayerContext& context) override;

 private:
  // All rows of a layer, or those that are on their way here.
  struct Layer {
    std::optional<PendingExchange> coming;
    at::Tensor k_TKE, v_TKE;
    at::Tensor gk_TKE, gv_TKE;  // once they are wanted
  };
  struct Sum {
    int64_t layer = 0;
    PendingExchange coming;
  };

  // Whether prefixes compute K and V only there, and read none.
  bool is_kv_only(int64_t layer) const { return layer >= context_.full_layers(); }
  // Makes sure that K/V of all rows are here.
  Layer& Here(int64_t layer);
  // Waits for the sum that was begun, if one was, and adds it to the own rows'.
  void TakeSum();

  const LayerContext context_;
  const PrefixRows rows_;
  const PartIndex index_;
  std::vector<at::Tensor> own_, own_gradients_;  // per layer: a part, as PartIndex says
  std::map<int64_t, Layer> here_;                // by layer: two at most
  std::optional<Sum> sum_;
};

}  // namespace stemma::worker
