#include "worker/model/context_hot_sets.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <glog/logging.h>

#include <cstdlib>
#include <utility>

#include "worker/model/phase_parts.h"

namespace stemma::worker {

HeldHotSet::HeldHotSet(const LayerContext& context, PrefixRows rows) : LocalHotSet(std::move(rows)), context_(context) {
  for (const PrefixBlockRows& block : rows_.blocks) {
    indices_.emplace_back(rows_, block.begin, block.end, *context.backend);
  }
}

const PartIndex& HeldHotSet::IndexOf(const PrefixBlockRows& block) const {
  const int64_t block_rows = rows_.blocks.front().end;
  return indices_[static_cast<size_t>(block.begin / block_rows)];
}

void HeldHotSet::Begin(const PrefixBlockRows& block, int64_t /*layer*/, PrefixPass pass) {
  if (pass != PrefixPass::kForward || block.begin > 0) return;
  for (auto* of_layers : {&k_TKE, &v_TKE}) of_layers->push_back(EmptyKv(context_, rows_.rows));
}

void HeldHotSet::Share(const PrefixBlockRows& block, int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const PartIndex& index = IndexOf(block);
  const at::Tensor parts = PendingExchange::Gather(*context_.cp, index.Part(k, v)).Wait();
  const auto rows = [&](const std::vector<at::Tensor>& of_layers) {
    return of_layers[static_cast<size_t>(layer)].slice(0, block.begin, block.end);
  };
  index.Unpack(parts, rows(k_TKE), rows(v_TKE));
}

void HeldHotSet::Keep(const PrefixBlockRows& /*block*/, int64_t /*layer*/, PrefixPass /*pass*/, at::Tensor& k,
                      at::Tensor& v) {
  k.reset();
  v.reset();
}

void HeldHotSet::Restore(const PrefixBlockRows& block, int64_t layer, at::Tensor& k, at::Tensor& v) {
  const auto own = [&](const std::vector<at::Tensor>& of_layers) {
    return IndexOf(block).Own(of_layers[static_cast<size_t>(layer)].slice(0, block.begin, block.end));
  };
  k = own(k_TKE);
  v = own(v_TKE);
}

KvGradients HeldHotSet::Gradients(const PrefixBlockRows& block, int64_t layer) {
  const KvGradients all = LocalHotSet::Gradients(block, layer);
  const at::Tensor sum = PendingExchange::Sum(*context_.cp, IndexOf(block).Parts(all.gk_TKE, all.gv_TKE)).Wait();
  return {sum[0].narrow(0, 0, block.own_rows()), sum[1].narrow(0, 0, block.own_rows())};
}

GatheredHotSet::GatheredHotSet(const LayerContext& context, PrefixRows rows)
    : context_(context), rows_(std::move(rows)), index_(rows_, 0, rows_.rows, *context.backend) {}

void GatheredHotSet::Prefetch(int64_t layer) {
  // What was got before is not valid any more.
  std::erase_if(here_, [&](const auto& other) { return std::abs(other.first - layer) != 1; });
  // The neighbour's is read next, so waiting for it here costs nothing, and one gathering takes memory at a time.
  for (const auto& [neighbour, unused] : here_) Here(neighbour);
  here_[layer].coming.emplace(PendingExchange::Gather(*context_.cp, own_[static_cast<size_t>(layer)]));
}

GatheredHotSet::Layer& GatheredHotSet::Here(int64_t layer) {
  Layer& here = here_.at(layer);
  if (!here.coming.has_value()) return here;
  const at::Tensor parts = here.coming->Wait();
  here.coming.reset();
  here.k_TKE = EmptyKv(context_, rows_.rows);
  here.v_TKE = EmptyKv(context_, rows_.rows);
  index_.Unpack(parts, here.k_TKE, here.v_TKE);
  return here;
}

AncestorKv GatheredHotSet::Get(int64_t layer, int64_t prefix, PrefixUse use) {
  if (use == PrefixUse::kRead) here_.erase(layer - 1);  // a forward has done with it
  Layer& here = Here(layer);
  if (use == PrefixUse::kAddGradients && !here.gk_TKE.defined()) {
    here.gk_TKE = ZeroKv(context_, rows_.rows);
    here.gv_TKE = ZeroKv(context_, rows_.rows);
  }
  const AncestorKv all{here.k_TKE, here.v_TKE, here.gk_TKE, here.gv_TKE};
  return all.Rows(rows_.begins[static_cast<size_t>(prefix)], rows_.end_of(prefix));
}

void GatheredHotSet::Reduce(int64_t layer) {
  TakeSum();
  Layer here = std::move(here_.extract(layer).mapped());
  here.k_TKE.reset();
  here.v_TKE.reset();
  const at::Tensor parts = here.gk_TKE.defined()
                               ? index_.Parts(here.gk_TKE, here.gv_TKE)
                               : at::zeros({rows_.ranks, 2, index_.part_rows(), context_.weights->config.num_kv_heads,
                                            context_.weights->config.head_size},
                                           own_gradients_.front().options());
  here.gk_TKE.reset();
  here.gv_TKE.reset();
  sum_.emplace(Sum{layer, PendingExchange::Sum(*context_.cp, parts)});
}

void GatheredHotSet::TakeSum() {
  if (!sum_.has_value()) return;
  own_gradients_[static_cast<size_t>(sum_->layer)].add_(sum_->coming.Wait());
  sum_.reset();
}

void GatheredHotSet::Rest() {
  TakeSum();
  here_.clear();
}

void GatheredHotSet::Begin(const PrefixBlockRows& /*block*/, int64_t layer, PrefixPass pass) {
  if (is_kv_only(layer)) {
    if (pass == PrefixPass::kBackward && layer > 0) Prefetch(layer - 1);
    return;
  }
  if (pass == PrefixPass::kForward) {
    Layer& here = here_[layer];
    here.k_TKE = EmptyKv(context_, rows_.rows);
    here.v_TKE = EmptyKv(context_, rows_.rows);
    return;
  }
  if (!here_.contains(layer)) Prefetch(layer);
  const int64_t next = pass == PrefixPass::kBackward ? layer - 1 : layer + 1;
  if (next >= 0 && !is_kv_only(next)) Prefetch(next);
}

void GatheredHotSet::Share(const PrefixBlockRows& block, int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  if (block.begin == 0) {
    own_.push_back(at::zeros({2, index_.part_rows(), k.size(1), k.size(2)}, k.options()));
  }
  const at::Tensor& own = own_[static_cast<size_t>(layer)];
  own[0].slice(0, block.own_begin, block.own_end).copy_(k);
  own[1].slice(0, block.own_begin, block.own_end).copy_(v);
  if (is_kv_only(layer)) return;
  const Layer& here = here_.at(layer);
  index_.Unpack(PendingExchange::Gather(*context_.cp, own).Wait(), here.k_TKE, here.v_TKE);
}

void GatheredHotSet::Keep(const PrefixBlockRows& /*block*/, int64_t layer, PrefixPass /*pass*/, at::Tensor& k,
                          at::Tensor& v) {
  k.reset();
  v.reset();
  here_.erase(layer);
}

void GatheredHotSet::Restore(const PrefixBlockRows& block, int64_t layer, at::Tensor& k, at::Tensor& v) {
  const at::Tensor& own = own_[static_cast<size_t>(layer)];
  k = own[0].slice(0, block.own_begin, block.own_end);
  v = own[1].slice(0, block.own_begin, block.own_end);
}

KvGradients GatheredHotSet::Gradients(const PrefixBlockRows& block, int64_t layer) {
  if (!is_kv_only(layer)) {
    Reduce(layer);
    TakeSum();
  }
  const at::Tensor& own = own_gradients_[static_cast<size_t>(layer)];
  return {own[0].slice(0, block.own_begin, block.own_end), own[1].slice(0, block.own_begin, block.own_end)};
}

void GatheredHotSet::Free(int64_t layer) {
  CHECK_EQ(static_cast<size_t>(layer) + 1, own_.size()) << "layers are freed from the last one down";
  own_.pop_back();
  own_gradients_.pop_back();
}

void GatheredHotSet::MakeGradients(const LayerContext& context) {
  for (const at::Tensor& own : own_) {
    own_gradients_.push_back(at::zeros_like(own, context.backend->options(context.weights->accumulate_dtype)));
  }
}

}  // namespace stemma::worker
