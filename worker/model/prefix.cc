#include "worker/model/prefix.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/cost/tape_policy.h"
#include "worker/model/phase_parts.h"

namespace stemma::worker {
namespace {

int64_t LastLayer(const LayerContext& context) { return context.weights->config.num_layers - 1; }

at::Tensor Rows(const at::Tensor& x_TKE, const PrefixBlock& block) { return x_TKE.slice(0, block.begin, block.end); }

// The spans of a block: its part of each prefix, behind the K/V of that prefix's earlier rows.
AttentionBatch BatchOf(const LayerContext& context, PrefixBatch& prefixes, const PrefixBlock& block, int64_t layer) {
  AttentionBatch batch;
  batch.scale = AttentionScale(context.weights->config);
  for (size_t p = 0; p < prefixes.kv.spans.size(); ++p) {
    const int64_t begin = std::max(prefixes.kv.spans[p].begin, block.begin);
    const int64_t end = std::min(prefixes.kv.spans[p].end, block.end);
    if (begin >= end) continue;
    AttentionSpan span{begin - block.begin, end - block.begin, -1};
    const int64_t earlier = begin - prefixes.kv.spans[p].begin;
    if (earlier > 0) {
      batch.ancestors.push_back(prefixes.kv.Get(layer, static_cast<int64_t>(p)).Rows(0, earlier));
      span.ancestor = static_cast<int64_t>(batch.ancestors.size()) - 1;
    }
    batch.spans.push_back(span);
  }
  return batch;
}

// The store's name of a block's tape in a layer.
int64_t EntryOf(const LayerContext& context, const PrefixBatch& prefixes, const PrefixBlock& block, int64_t layer) {
  const int64_t block_rows = prefixes.options.block_rows;
  return (block_rows > 0 ? block.begin / block_rows : 0) * context.weights->config.num_layers + layer;
}

template <typename Tape>
void ComeBack(const LayerContext& context, PrefixBatch& prefixes, const PrefixBlock& block, int64_t layer, Tape& tape) {
  if (prefixes.offload == nullptr) return;
  PutTensors(tape, prefixes.offload->Take(EntryOf(context, prefixes, block, layer)));
}

// One block through all layers. keep_kv(layer, k, v) may replace K and V by views.
class BlockForward {
 public:
  BlockForward(const LayerContext& context, PrefixBatch& prefixes, PrefixBlock& block, v1::TapePolicy policy)
      : context_(context), prefixes_(prefixes), block_(block), policy_(policy) {}

  // Phase A.
  void Run() {
    RunLayers([&](int64_t layer, at::Tensor& k_TKE, at::Tensor& v_TKE) {
      Store(prefixes_.kv.k_TKE, layer, k_TKE);
      Store(prefixes_.kv.v_TKE, layer, v_TKE);
    });
    if (prefixes_.options.forward_only || !KeepsInputs(policy_)) Forget();
  }

  // Phase C, policy S5: the tape that Phase A did not keep.
  void RunAgain() {
    RunLayers([&](int64_t layer, at::Tensor& k_TKE, at::Tensor& v_TKE) {
      k_TKE = Rows(prefixes_.kv.k_TKE[static_cast<size_t>(layer)], block_);
      v_TKE = Rows(prefixes_.kv.v_TKE[static_cast<size_t>(layer)], block_);
    });
  }

 private:
  template <typename KeepKv>
  void RunLayers(const KeepKv& keep_kv) {
    const at::Tensor positions_T = prefixes_.positions_T.slice(0, block_.begin, block_.end);
    const int64_t last = LastLayer(context_);
    at::Tensor x_TD = Embed(context_, prefixes_.tokens_T.slice(0, block_.begin, block_.end));
    const bool keep = !prefixes_.options.forward_only;
    for (int64_t l = 0; l < last; ++l) {
      LayerResult result =
          LayerForward(context_, l, BatchOf(context_, prefixes_, block_, l), positions_T, x_TD, policy_);
      x_TD = std::move(result.y_TD);
      keep_kv(l, result.tape.attention.saved.k_TKE, result.tape.attention.saved.v_TKE);
      if (keep && KeepsInputs(policy_)) {
        Leave(l, result.tape);
        block_.tape.push_back(std::move(result.tape));
      }
    }
    block_.last = KvBlock(context_, last, positions_T).Forward(x_TD, policy_);
    keep_kv(last, block_.last.k_TKE, block_.last.v_TKE);
    x_TD.reset();
    if (keep && KeepsInputs(policy_)) Leave(last, block_.last);
  }

  template <typename Tape>
  void Leave(int64_t layer, Tape& tape) {
    if (prefixes_.offload == nullptr) return;
    prefixes_.offload->Put(EntryOf(context_, prefixes_, block_, layer), TakeTensors(tape));
    prefixes_.offload->DrainTo(prefixes_.options.offload_headroom_bytes);
  }

  // With one block, keeps the op's tensor. With several, copies it into their shared buffer; `kv` becomes a view of it.
  void Store(std::vector<at::Tensor>& buffers, int64_t layer, at::Tensor& kv_TKE) {
    if (prefixes_.blocks.size() == 1) {
      buffers.push_back(kv_TKE);
      return;
    }
    if (&block_ == &prefixes_.blocks.front()) {
      buffers.push_back(at::empty({prefixes_.blocks.back().end, kv_TKE.size(1), kv_TKE.size(2)}, kv_TKE.options()));
    }
    const at::Tensor rows = Rows(buffers[static_cast<size_t>(layer)], block_);
    rows.copy_(kv_TKE);
    kv_TKE = rows;
  }

  void Forget() {
    block_.tape.clear();
    block_.last = {};
  }

  const LayerContext& context_;
  PrefixBatch& prefixes_;
  PrefixBlock& block_;
  const v1::TapePolicy policy_;
};

PrefixBatch MakeBatch(const LayerContext& context, const std::vector<int64_t>& tokens,
                      const std::vector<int64_t>& lengths, const PrefixOptions& options) {
  PrefixBatch prefixes;
  prefixes.options = options;
  prefixes.tokens_T = at::tensor(tokens, at::kLong).to(context.backend->device);
  std::vector<at::Tensor> positions;
  int64_t rows = 0;
  for (const int64_t length : lengths) {
    CHECK_GT(length, 0) << "an empty prefix has no Phase A";
    prefixes.kv.spans.push_back({rows, rows + length, -1});
    positions.push_back(at::arange(length, context.backend->options(at::kLong)));
    rows += length;
  }
  prefixes.positions_T = at::cat(positions, 0);
  const int64_t block_rows = options.block_rows > 0 ? options.block_rows : rows;
  for (int64_t begin = 0; begin < rows; begin += block_rows) {
    prefixes.blocks.push_back({begin, std::min(begin + block_rows, rows), {}, {}});
  }
  return prefixes;
}

// Gives a hot set its gK/gV: zeros.
void AddGradients(const LayerContext& context, int64_t rows, LocalPrefixKv& kv) {
  for (int64_t l = 0; l <= LastLayer(context); ++l) {
    for (auto* of_layer : {&kv.gk_TKE, &kv.gv_TKE}) of_layer->push_back(ZeroKv(context, rows));
  }
}

void BackwardBlock(const LayerContext& context, PrefixBatch& prefixes, PrefixBlock block,
                   const LayerFinal& layer_final) {
  const int64_t last = LastLayer(context);
  // Backward ends with the first block, so its inputs can be freed, and its layers add to their gradients last.
  const bool release = block.begin == 0;
  const auto layer_ended = [&](int64_t layer) {
    if (release) Tell(layer_final, layer);
  };
  ComeBack(context, prefixes, block, last, block.last);
  const at::Tensor positions_T = prefixes.positions_T.slice(0, block.begin, block.end);
  const auto gradient = [&](const std::vector<at::Tensor>& of_layer, int64_t layer) {
    return Rows(of_layer[static_cast<size_t>(layer)], block);
  };
  at::Tensor dx_TD =
      KvBlock(context, last, positions_T)
          .Backward(std::move(block.last), gradient(prefixes.kv.gk_TKE, last), gradient(prefixes.kv.gv_TKE, last));
  layer_ended(last);
  for (int64_t l = last - 1; l >= 0; --l) {
    if (release) {
      for (auto* of_layer : {&prefixes.kv.k_TKE, &prefixes.kv.v_TKE, &prefixes.kv.gk_TKE, &prefixes.kv.gv_TKE})
        of_layer->pop_back();
    }
    LayerTape tape = std::move(block.tape.back());
    block.tape.pop_back();
    ComeBack(context, prefixes, block, l, tape);
    dx_TD = LayerBackward(context, l, BatchOf(context, prefixes, block, l), positions_T, std::move(dx_TD),
                          std::move(tape), gradient(prefixes.kv.gk_TKE, l), gradient(prefixes.kv.gv_TKE, l));
    layer_ended(l);
  }
  EmbedBackward(context, prefixes.tokens_T.slice(0, block.begin, block.end), dx_TD);
}

}  // namespace

PrefixBatch PrefixForward(const LayerContext& context, const std::vector<int64_t>& tokens,
                          const std::vector<int64_t>& lengths, const PrefixOptions& options) {
  PrefixBatch prefixes = MakeBatch(context, tokens, lengths, options);
  if (options.host != nullptr && !options.forward_only && KeepsInputs(options.policy)) {
    prefixes.offload = std::make_unique<OffloadStore>(OffloadOptions{.headroom_bytes = options.offload_headroom_bytes},
                                                      *options.host, *options.copies);
  }
  for (PrefixBlock& block : prefixes.blocks) BlockForward(context, prefixes, block, options.policy).Run();
  if (prefixes.offload != nullptr) prefixes.offload->ProducingEnded();
  if (!options.forward_only) AddGradients(context, static_cast<int64_t>(tokens.size()), prefixes.kv);
  return prefixes;
}

PrefixBatch BorrowedPrefix(const LayerContext& context, int64_t rows, bool forward_only) {
  PrefixBatch prefixes;
  prefixes.kv.spans.push_back({0, rows, -1});
  const ModelConfig& config = context.weights->config;
  const auto options = context.backend->options(context.weights->run_dtype);
  for (int64_t l = 0; l <= LastLayer(context); ++l) {
    for (auto* of_layer : {&prefixes.kv.k_TKE, &prefixes.kv.v_TKE}) {
      of_layer->push_back(at::empty({rows, config.num_kv_heads, config.head_size}, options));
    }
  }
  if (!forward_only) AddGradients(context, rows, prefixes.kv);
  return prefixes;
}

ResidencyStats PrefixBackward(const LayerContext& context, PrefixBatch prefixes, const LayerFinal& layer_final) {
  while (!prefixes.blocks.empty()) {
    PrefixBlock& block = prefixes.blocks.back();
    if (!KeepsInputs(prefixes.options.policy)) BlockForward(context, prefixes, block, v1::S0).RunAgain();
    PrefixBlock last = std::move(block);
    prefixes.blocks.pop_back();
    BackwardBlock(context, prefixes, std::move(last), layer_final);
  }
  return prefixes.offload != nullptr ? prefixes.offload->stats() : ResidencyStats{};
}

}  // namespace stemma::worker
