#include "worker/model/prefix.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/cost/tape_policy.h"
#include "worker/model/context_hot_sets.h"
#include "worker/model/phase_parts.h"

namespace stemma::worker {
namespace {

// The spans of a block: its pieces of each prefix, behind the K/V of that prefix's earlier rows.
AttentionBatch BatchOf(const LayerContext& context, HotSet& kv, const PrefixBlockRows& block, int64_t layer,
                       PrefixUse use) {
  return BatchOfPieces(context, block.pieces, /*ancestor_rows=*/0, [&](const ContextPiece& piece, int64_t earlier) {
    return kv.Get(layer, piece.prefix, use).Rows(0, earlier);
  });
}

// The store's name of a block's tape in a layer.
int64_t EntryOf(const LayerContext& context, const PrefixBatch& prefixes, const PrefixBlock& block, int64_t layer) {
  const int64_t block_rows = prefixes.options.block_rows;
  return (block_rows > 0 ? block.rows.begin / block_rows : 0) * context.layers() + layer;
}

template <typename Tape>
void RestoreTape(const LayerContext& context, PrefixBatch& prefixes, const PrefixBlock& block, int64_t layer,
                 Tape& tape) {
  if (prefixes.offload == nullptr) return;
  PutTensors(tape, prefixes.offload->Take(EntryOf(context, prefixes, block, layer)));
}

at::Tensor OwnRows(const at::Tensor& x_T, const PrefixBlockRows& block) {
  return x_T.slice(0, block.own_begin, block.own_end);
}

// One layer of a block, as its attention meets the hot set.
class BlockKv final : public SegmentKv {
 public:
  BlockKv(HotSet& kv, const PrefixBlockRows& block, int64_t layer, PrefixPass pass)
      : kv_(kv), block_(block), layer_(layer), pass_(pass) {}

  void Made(const at::Tensor& k_TKE, const at::Tensor& v_TKE) const override {
    if (pass_ == PrefixPass::kForward) kv_.Share(block_, layer_, k_TKE, v_TKE);
  }
  KvGradients Gradients() const override { return kv_.Gradients(block_, layer_); }

 private:
  HotSet& kv_;
  const PrefixBlockRows& block_;
  const int64_t layer_;
  const PrefixPass pass_;
};

// Returns how many rows of a dense schedule each of the block's rows on this rank stands for.
std::vector<uint32_t> MultiplicitiesOf(const PrefixBlockRows& block, const std::vector<uint32_t>& of_prefixes) {
  std::vector<uint32_t> of_rows;
  for (const ContextPiece& piece : block.pieces) {
    of_rows.insert(of_rows.end(), static_cast<size_t>(piece.rows()), of_prefixes.at(static_cast<size_t>(piece.prefix)));
  }
  return of_rows;
}

// One block through all layers: Phase A; in Phase C again, where Phase A has kept no tape.
class BlockForward {
 public:
  BlockForward(const LayerContext& context, PrefixBatch& prefixes, PrefixBlock& block, v1::TapePolicy policy,
               PrefixPass pass)
      : context_(context),
        prefixes_(prefixes),
        kv_(*prefixes.kv),
        block_(block),
        rows_(block.rows),
        policy_(policy),
        pass_(pass),
        keep_(!prefixes.options.forward_only && KeepsInputs(policy)) {}

  void Run() {
    if (rows_.own_rows() == 0) return RunWithoutRows();
    const at::Tensor positions_T = OwnRows(prefixes_.positions_T, rows_);
    const CountedRows counted = Counted();
    LayerContext context = context_;
    if (context.counted != nullptr) context.counted = &counted;
    at::Tensor x_TD = Input();
    for (int64_t l = 0; l < context_.full_layers(); ++l) {
      context_.parameters->Layer(l, UnitUse::kRead);
      kv_.Begin(rows_, l, pass_);
      const BlockKv others(kv_, rows_, l, pass_);
      LayerResult result = LayerForward(
          context, l, {BatchOf(context_, kv_, rows_, l, PrefixUse::kRead), positions_T, others}, x_TD, policy_);
      x_TD = std::move(result.y_TD);
      kv_.Keep(rows_, l, pass_, result.tape.attention.saved.k_TKE, result.tape.attention.saved.v_TKE);
      if (keep_) {
        OffloadTape(l, result.tape);
        block_.tape.push_back(std::move(result.tape));
      }
    }
    if (context_.stages->is_last()) return RunLast(positions_T, std::move(x_TD));
    if (pass_ == PrefixPass::kForward) context_.stages->SendHidden(std::move(x_TD));
  }

 private:
  CountedRows Counted() const {
    if (context_.counted == nullptr) return {};
    return {context_.counted->load, MultiplicitiesOf(rows_, prefixes_.options.multiplicities)};
  }

  at::Tensor Input() {
    if (block_.input_TD.defined()) return std::move(block_.input_TD);
    at::Tensor x_TD = SegmentInput(context_, OwnRows(prefixes_.tokens_T, rows_));
    if (runs_again() && !context_.stages->is_first()) block_.input_TD = x_TD;
    return x_TD;
  }

  bool runs_again() const { return !keep_ && !prefixes_.options.forward_only && pass_ == PrefixPass::kForward; }

  // The model's last layer, where a prefix makes K and V only.
  void RunLast(const at::Tensor& positions_T, at::Tensor x_TD) {
    const int64_t last = context_.full_layers();
    context_.parameters->Layer(last, UnitUse::kRead);
    kv_.Begin(rows_, last, pass_);
    block_.last = KvBlock(context_, last, positions_T).Forward(x_TD, policy_);
    if (pass_ == PrefixPass::kForward) kv_.Share(rows_, last, block_.last.k_TKE, block_.last.v_TKE);
    kv_.Keep(rows_, last, pass_, block_.last.k_TKE, block_.last.v_TKE);
    x_TD.reset();
    if (keep_) {
      OffloadTape(last, block_.last);
    } else {
      block_.last = {};
    }
  }

  // Takes part in what the other ranks exchange.
  void RunWithoutRows() {
    if (context_.stages->is_first()) context_.parameters->Embedding(UnitUse::kRead);
    for (int64_t l = 0; l < context_.layers(); ++l) {
      context_.parameters->Layer(l, UnitUse::kRead);
      at::Tensor k_TKE = EmptyKv(context_, 0), v_TKE = k_TKE;
      kv_.Begin(rows_, l, pass_);
      if (pass_ == PrefixPass::kForward) kv_.Share(rows_, l, k_TKE, v_TKE);
      kv_.Keep(rows_, l, pass_, k_TKE, v_TKE);
    }
  }

  template <typename Tape>
  void OffloadTape(int64_t layer, Tape& tape) {
    if (prefixes_.offload == nullptr) return;
    prefixes_.offload->Put(EntryOf(context_, prefixes_, block_, layer), TakeTensors(tape));
    prefixes_.offload->DrainTo(prefixes_.options.offload_headroom_bytes);
  }

  const LayerContext& context_;
  PrefixBatch& prefixes_;
  HotSet& kv_;
  PrefixBlock& block_;
  const PrefixBlockRows& rows_;
  const v1::TapePolicy policy_;
  const PrefixPass pass_;
  const bool keep_;  // the tape
};

std::unique_ptr<HotSet> MakeHotSet(const LayerContext& context, PrefixRows rows, bool regather) {
  if (context.cp_size() == 1) return std::make_unique<LocalHotSet>(std::move(rows));
  if (regather) return std::make_unique<GatheredHotSet>(context, std::move(rows));
  return std::make_unique<HeldHotSet>(context, std::move(rows));
}

PrefixBatch MakeBatch(const LayerContext& context, const std::vector<int64_t>& tokens,
                      const std::vector<int64_t>& lengths, const PrefixOptions& options) {
  PrefixBatch prefixes;
  prefixes.options = options;
  PrefixRows rows = MakePrefixRows(lengths, options.block_rows, context.cp_rank(), context.cp_size());
  std::vector<int64_t> own_tokens;
  std::vector<at::Tensor> positions = {at::empty({0}, context.backend->options(at::kLong))};
  for (const PrefixBlockRows& block : rows.blocks) {
    for (const ContextPiece& piece : block.pieces) {
      own_tokens.insert(own_tokens.end(), tokens.begin() + piece.begin, tokens.begin() + piece.end);
      positions.push_back(at::arange(piece.begin - piece.prefix_begin, piece.end - piece.prefix_begin,
                                     context.backend->options(at::kLong)));
    }
    prefixes.blocks.push_back({block, {}, {}});
  }
  prefixes.tokens_T = context.backend->send(at::tensor(own_tokens, at::kLong), context.backend->device);
  prefixes.positions_T = at::cat(positions, 0);
  prefixes.kv = MakeHotSet(context, std::move(rows), options.regather);
  return prefixes;
}

// The backward of one block, from the last layer to the first.
class BlockBackward {
 public:
  BlockBackward(const LayerContext& context, PrefixBatch& prefixes, PrefixBlock block, const LayerFinal& layer_final)
      : context_(context),
        prefixes_(prefixes),
        kv_(*prefixes.kv),
        block_(std::move(block)),
        rows_(block_.rows),
        layer_final_(layer_final) {}

  void Run() {
    const at::Tensor positions_T = OwnRows(prefixes_.positions_T, rows_);
    at::Tensor dx_TD = context_.stages->is_last() ? RunLast(positions_T) : ReceiveGradient();
    for (int64_t l = context_.full_layers() - 1; l >= 0; --l) {
      if (is_first() && l + 1 < context_.layers()) kv_.Free(l + 1);
      context_.parameters->Layer(l, UnitUse::kTrain);
      kv_.Begin(rows_, l, PrefixPass::kBackward);
      if (has_rows()) {
        dx_TD = RunLayer(l, positions_T, std::move(dx_TD));
      } else {
        kv_.Gradients(rows_, l);
      }
      LayerEnded(l);
    }
    if (has_rows()) return SegmentInputBackward(context_, OwnRows(prefixes_.tokens_T, rows_), std::move(dx_TD));
    if (context_.stages->is_first()) context_.parameters->Embedding(UnitUse::kGradient);
  }

 private:
  // Backward ends with the first block, so its inputs can be freed, and its layers add to their gradients last.
  bool is_first() const { return rows_.begin == 0; }
  bool has_rows() const { return rows_.own_rows() > 0; }

  void LayerEnded(int64_t layer) const {
    if (is_first()) Tell(layer_final_, layer);
  }

  at::Tensor ReceiveGradient() { return has_rows() ? OutputGradient(context_, rows_.own_rows()) : at::Tensor(); }

  at::Tensor RunLast(const at::Tensor& positions_T) {
    const int64_t last = context_.full_layers();
    if (has_rows()) RestoreTape(context_, prefixes_, block_, last, block_.last);
    context_.parameters->Layer(last, UnitUse::kTrain);
    kv_.Begin(rows_, last, PrefixPass::kBackward);
    const KvGradients gradients = kv_.Gradients(rows_, last);
    at::Tensor dx_TD;
    if (has_rows()) {
      dx_TD = KvBlock(context_, last, positions_T).Backward(std::move(block_.last), gradients.gk_TKE, gradients.gv_TKE);
    }
    LayerEnded(last);
    return dx_TD;
  }

  at::Tensor RunLayer(int64_t layer, const at::Tensor& positions_T, at::Tensor dx_TD) {
    LayerTape tape = std::move(block_.tape.back());
    block_.tape.pop_back();
    RestoreTape(context_, prefixes_, block_, layer, tape);
    kv_.Restore(rows_, layer, tape.attention.saved.k_TKE, tape.attention.saved.v_TKE);
    const BlockKv others(kv_, rows_, layer, PrefixPass::kBackward);
    return LayerBackward(context_, layer,
                         {BatchOf(context_, kv_, rows_, layer, PrefixUse::kAddGradients), positions_T, others},
                         std::move(dx_TD), std::move(tape));
  }

  const LayerContext& context_;
  PrefixBatch& prefixes_;
  HotSet& kv_;
  PrefixBlock block_;
  const PrefixBlockRows& rows_;
  const LayerFinal& layer_final_;
};

}  // namespace

PrefixBatch PrefixForward(const LayerContext& context, const std::vector<int64_t>& tokens,
                          const std::vector<int64_t>& lengths, const PrefixOptions& options) {
  PrefixBatch prefixes = MakeBatch(context, tokens, lengths, options);
  if (options.host != nullptr && !options.forward_only && KeepsInputs(options.policy)) {
    prefixes.offload =
        std::make_unique<OffloadStore>(options.offload_headroom_bytes, *options.host, *options.copy_engine);
  }
  for (PrefixBlock& block : prefixes.blocks) {
    BlockForward(context, prefixes, block, options.policy, PrefixPass::kForward).Run();
  }
  prefixes.hidden_sent = context.stages->hidden_sent();
  if (prefixes.offload != nullptr) prefixes.offload->ProducingEnded();
  if (!options.forward_only) prefixes.kv->MakeGradients(context);
  return prefixes;
}

void JoinPrefixForward(const LayerContext& context) {
  if (context.stages->is_first()) context.parameters->Embedding(UnitUse::kRead);
  for (int64_t l = 0; l < context.layers(); ++l) context.parameters->Layer(l, UnitUse::kRead);
}

LocalHotSet& PrefixBatch::all_rows() const {
  auto* all = dynamic_cast<LocalHotSet*>(kv.get());
  CHECK(all != nullptr) << "a hot set of this rank's rows alone";
  return *all;
}

PrefixBatch BorrowedPrefix(const LayerContext& context, int64_t rows, bool forward_only) {
  PrefixBatch prefixes;
  auto kv = std::make_unique<LocalHotSet>(MakePrefixRows({rows}, /*block_rows=*/0, /*rank=*/0, /*ranks=*/1));
  for (int64_t l = 0; l < context.layers(); ++l) {
    for (auto* of_layers : {&kv->k_TKE, &kv->v_TKE}) of_layers->push_back(EmptyKv(context, rows));
  }
  if (!forward_only) kv->MakeGradients(context);
  prefixes.kv = std::move(kv);
  return prefixes;
}

ResidencyStats PrefixBackward(const LayerContext& context, PrefixBatch prefixes, const LayerFinal& layer_final) {
  context.stages->RetireHidden(prefixes.hidden_sent);
  while (!prefixes.blocks.empty()) {
    PrefixBlock& block = prefixes.blocks.back();
    if (!KeepsInputs(prefixes.options.policy)) {
      BlockForward(context, prefixes, block, v1::S0, PrefixPass::kAgain).Run();
    } else if (prefixes.options.others_run_again) {
      JoinPrefixForward(context);
    }
    PrefixBlock last = std::move(block);
    prefixes.blocks.pop_back();
    BlockBackward(context, prefixes, std::move(last), layer_final).Run();
  }
  return prefixes.offload != nullptr ? prefixes.offload->stats() : ResidencyStats{};
}

}  // namespace stemma::worker
