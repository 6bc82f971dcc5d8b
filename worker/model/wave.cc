#include "worker/model/wave.h"

#include <ATen/ops/cat.h>

#include <utility>

#include "worker/model/phase_parts.h"
#include "worker/ops/norm.h"

namespace stemma::worker {
namespace {

// Rows of x that `segments` keep: their kv_only part, or the rest, in segment order.
at::Tensor SelectRows(const at::Tensor& x, const std::vector<WaveSegment>& segments, bool kv_only) {
  std::vector<at::Tensor> parts;
  for (const WaveSegment& s : segments) {
    const int64_t middle = s.begin + s.kv_only_rows;
    parts.push_back(kv_only ? x.slice(0, s.begin, middle) : x.slice(0, middle, s.end));
  }
  return at::cat(parts, 0);
}

// The inverse of both selections.
at::Tensor InterleaveRows(const at::Tensor& kv_only, const at::Tensor& rest, const std::vector<WaveSegment>& segments) {
  std::vector<at::Tensor> parts;
  int64_t a = 0, b = 0;
  for (const WaveSegment& s : segments) {
    const int64_t rest_rows = s.end - s.begin - s.kv_only_rows;
    parts.push_back(kv_only.slice(0, a, a + s.kv_only_rows));
    parts.push_back(rest.slice(0, b, b + rest_rows));
    a += s.kv_only_rows;
    b += rest_rows;
  }
  return at::cat(parts, 0);
}

// How a wave attends in one layer.
struct LayerAttention {
  AttentionBatch batch;
  std::unique_ptr<const CutLayerKv> cut = nullptr;  // null: its segments are whole
  // Hands the batch on; `positions_T` are the rows'.
  LayerSegments Take(const at::Tensor& positions_T) {
    return {std::move(batch), positions_T, cut != nullptr ? *cut : NobodyElse()};
  }
};

// A wave's attention in one layer, and in the last layer with the kv-only rows set apart. In a backward `tape` is the
// layer's.
class WaveAttention {
 public:
  WaveAttention(const LayerContext& context, PrefixKv& kv, const WaveInput& wave, PrefixUse use)
      : context_(context), kv_(kv), wave_(wave), use_(use) {
    for (const WaveSegment& s : wave.segments) kv_only_rows_ += s.kv_only_rows;
  }

  const LayerContext& context() const { return context_; }
  const WaveInput& wave() const { return wave_; }
  PrefixKv& kv() const { return kv_; }
  int64_t last_layer() const { return context_.layers() - 1; }  // of this rank
  int64_t kv_only_rows() const { return kv_only_rows_; }

  LayerAttention Layer(int64_t layer, const LayerTape& tape = {}) const {
    if (wave_.cut != nullptr) return CutLayer(layer, tape.attention.saved);
    AttentionBatch batch = Empty();
    int64_t current = -1;
    for (const WaveSegment& s : wave_.segments) {
      if (s.prefix >= 0 && s.prefix != current) batch.ancestors.push_back(kv_.Get(layer, s.prefix, use_));
      current = s.prefix;
      batch.spans.push_back({s.begin, s.end, s.prefix < 0 ? -1 : static_cast<int64_t>(batch.ancestors.size()) - 1});
    }
    return {std::move(batch)};
  }

  // Rows after the kv-only ones, which become a trajectory's own ancestor.
  LayerAttention LastLayer(const KvTape& kv, const at::Tensor& gk_TKE, const at::Tensor& gv_TKE,
                           const LayerTape& tape = {}) const {
    if (wave_.cut != nullptr) return Layer(last_layer(), tape);
    AttentionBatch batch = Empty();
    int64_t current = -1, a = 0, b = 0;
    for (const WaveSegment& s : wave_.segments) {
      int64_t ancestor = -1;
      if (s.prefix >= 0) {
        if (s.prefix != current) batch.ancestors.push_back(kv_.Get(last_layer(), s.prefix, use_));
        ancestor = static_cast<int64_t>(batch.ancestors.size()) - 1;
      } else if (s.kv_only_rows > 0) {
        const AncestorKv apart{kv.k_TKE, kv.v_TKE, gk_TKE, gv_TKE};
        batch.ancestors.push_back(apart.Rows(a, a + s.kv_only_rows));
        ancestor = static_cast<int64_t>(batch.ancestors.size()) - 1;
      }
      current = s.prefix;
      const int64_t rows = s.end - s.begin - s.kv_only_rows;
      batch.spans.push_back({b, b + rows, ancestor});
      a += s.kv_only_rows;
      b += rows;
    }
    return {std::move(batch)};
  }

 private:
  LayerAttention CutLayer(int64_t layer, const AttentionSaved& saved) const {
    const int64_t prefix = wave_.segments.front().prefix;
    auto cut = std::make_unique<const CutLayerKv>(*wave_.cut, prefix < 0 ? AncestorKv{} : kv_.Get(layer, prefix, use_),
                                                  saved.k_TKE, saved.v_TKE);
    AttentionBatch batch = cut->Batch();
    return {std::move(batch), std::move(cut)};
  }

  AttentionBatch Empty() const {
    AttentionBatch batch;
    batch.layout = wave_.layout;
    batch.scale = AttentionScale(context_.weights->config);
    return batch;
  }

  const LayerContext& context_;
  PrefixKv& kv_;
  const WaveInput& wave_;
  const PrefixUse use_;
  int64_t kv_only_rows_ = 0;
};

// The model's last layer, which splits off what its trajectories' earlier rows need, and the final norm.
WaveForwardResult LastLayerForward(const WaveAttention& attention, at::Tensor x_TD, WaveTape tape, bool keep_tape) {
  const LayerContext& context = attention.context();
  const WaveInput& wave = attention.wave();
  const Weights& weights = *context.weights;
  const int64_t last = attention.last_layer();
  context.parameters->Layer(last, UnitUse::kRead);
  at::Tensor positions_B = wave.positions_T;
  if (attention.kv_only_rows() > 0) {
    const at::Tensor positions_A = SelectRows(wave.positions_T, wave.segments, /*kv_only=*/true);
    at::Tensor all_TD = context.tp->GatherRows(x_TD, wave.tokens_T.numel());
    x_TD.reset();
    tape.last_kv =
        KvBlock(context, last, positions_A)
            .Forward(context.tp->LocalPart(SelectRows(all_TD, wave.segments, /*kv_only=*/true)), wave.policy);
    if (keep_tape) {
      tape.last_gk_TKE = ZeroKv(context, attention.kv_only_rows());
      tape.last_gv_TKE = ZeroKv(context, attention.kv_only_rows());
    }
    positions_B = SelectRows(wave.positions_T, wave.segments, /*kv_only=*/false);
    x_TD = context.tp->LocalPart(SelectRows(all_TD, wave.segments, /*kv_only=*/false));
  }
  LayerAttention attends = attention.LastLayer(tape.last_kv, tape.last_gk_TKE, tape.last_gv_TKE);
  LayerResult result = LayerForward(context, last, attends.Take(positions_B), x_TD, wave.policy);
  attends.cut.reset();
  x_TD.reset();
  attention.kv().Rest();
  const RmsNormResult norm =
      RmsNormForward(*context.backend, result.y_TD, weights.at(weights.final_norm).weight, weights.config.rms_norm_eps);
  if (!keep_tape) return {norm.y_TD, {}};
  tape.layers.push_back(std::move(result.tape));
  tape.y_BD = std::move(result.y_TD);
  tape.rstd_B = norm.rstd_T;
  return {norm.y_TD, std::move(tape)};
}

// Returns the gradient of the model's last layer's input, of all rows.
at::Tensor LastLayerBackward(const WaveAttention& attention, WaveTape& tape, at::Tensor dhidden_BD) {
  const LayerContext& context = attention.context();
  const WaveInput& wave = attention.wave();
  const Weights& weights = *context.weights;
  const Parameter& final_norm = weights.at(weights.final_norm);
  const int64_t last = attention.last_layer();
  context.parameters->Layer(last, UnitUse::kTrain);
  at::Tensor dx_TD = RmsNormBackward(*context.backend, {tape.y_BD, tape.rstd_B, final_norm.weight}, dhidden_BD,
                                     /*residual_TD=*/{}, final_norm.grad);
  dhidden_BD.reset();
  tape.y_BD.reset();
  const bool split = attention.kv_only_rows() > 0;
  const at::Tensor positions_B =
      split ? SelectRows(wave.positions_T, wave.segments, /*kv_only=*/false) : wave.positions_T;
  LayerTape top = std::move(tape.layers.back());
  tape.layers.pop_back();
  if (last > 0) attention.kv().Prefetch(last - 1);
  LayerAttention attends = attention.LastLayer(tape.last_kv, tape.last_gk_TKE, tape.last_gv_TKE, top);
  dx_TD = LayerBackward(context, last, attends.Take(positions_B), std::move(dx_TD), std::move(top));
  attention.kv().Reduce(last);
  if (!split) return dx_TD;
  const at::Tensor positions_A = SelectRows(wave.positions_T, wave.segments, /*kv_only=*/true);
  const at::Tensor dx_A =
      KvBlock(context, last, positions_A).Backward(std::move(tape.last_kv), tape.last_gk_TKE, tape.last_gv_TKE);
  tape.last_gk_TKE.reset();
  tape.last_gv_TKE.reset();
  return context.tp->LocalPart(InterleaveRows(context.tp->GatherRows(dx_A, positions_A.numel()),
                                              context.tp->GatherRows(dx_TD, positions_B.numel()), wave.segments));
}

}  // namespace

WaveForwardResult WaveForward(const LayerContext& context, const WavePrefixes& prefixes, const WaveInput& wave,
                              bool keep_tape) {
  const WaveAttention attention(context, prefixes.kv, wave, PrefixUse::kRead);
  WaveTape tape;
  prefixes.kv.Prefetch(0);
  at::Tensor x_TD = SegmentInput(context, wave.tokens_T);
  for (int64_t l = 0; l < context.full_layers(); ++l) {
    context.parameters->Layer(l, UnitUse::kRead);
    if (l + 1 < context.layers()) prefixes.kv.Prefetch(l + 1);
    LayerAttention attends = attention.Layer(l);
    LayerResult result = LayerForward(context, l, attends.Take(wave.positions_T), x_TD, wave.policy);
    x_TD = std::move(result.y_TD);
    if (keep_tape) tape.layers.push_back(std::move(result.tape));
    prefixes.between_layers();
  }
  if (context.stages->is_last()) {
    return LastLayerForward(attention, std::move(x_TD), std::move(tape), keep_tape);
  }
  prefixes.kv.Rest();
  context.stages->SendHidden(std::move(x_TD));
  tape.hidden_sent = context.stages->hidden_sent();
  return {{}, std::move(tape)};
}

void WaveBackward(const LayerContext& context, const WavePrefixes& prefixes, const WaveInput& wave, WaveTape tape,
                  at::Tensor dhidden_BD, const LayerFinal& layer_final) {
  const WaveAttention attention(context, prefixes.kv, wave, PrefixUse::kAddGradients);
  prefixes.kv.Prefetch(attention.last_layer());
  at::Tensor dx_TD;
  if (context.stages->is_last()) {
    dx_TD = LastLayerBackward(attention, tape, std::move(dhidden_BD));
    Tell(layer_final, attention.last_layer());
  } else {
    dx_TD = OutputGradient(context, wave.tokens_T.numel());
    context.stages->RetireHidden(tape.hidden_sent);
  }
  for (int64_t l = context.full_layers() - 1; l >= 0; --l) {
    prefixes.between_layers();
    context.parameters->Layer(l, UnitUse::kTrain);
    if (l > 0) prefixes.kv.Prefetch(l - 1);
    LayerTape layer_tape = std::move(tape.layers.back());
    tape.layers.pop_back();
    LayerAttention attends = attention.Layer(l, layer_tape);
    dx_TD = LayerBackward(context, l, attends.Take(wave.positions_T), std::move(dx_TD), std::move(layer_tape));
    prefixes.kv.Reduce(l);
    Tell(layer_final, l);
  }
  SegmentInputBackward(context, wave.tokens_T, std::move(dx_TD));
  prefixes.kv.Rest();
}

// Both make the same calls in the same order as WaveForward and WaveBackward do on the ranks that have a wave. In any
// other order ranks would wait for each other in a circle.

void JoinWaveForward(const LayerContext& context, PrefixKv* kv, UnitUse head) {
  if (kv != nullptr) kv->Prefetch(0);
  if (context.stages->is_first()) context.parameters->Embedding(UnitUse::kRead);
  for (int64_t l = 0; l < context.layers(); ++l) {
    context.parameters->Layer(l, UnitUse::kRead);
    if (kv != nullptr && l + 1 < context.layers()) kv->Prefetch(l + 1);
  }
  if (kv != nullptr) kv->Rest();
  if (context.stages->is_last()) context.parameters->Head(head);
}

void JoinWaveBackward(const LayerContext& context, PrefixKv* kv) {
  const int64_t last = context.layers() - 1;
  if (kv != nullptr) kv->Prefetch(last);
  for (int64_t l = last; l >= 0; --l) {
    context.parameters->Layer(l, UnitUse::kTrain);
    if (kv != nullptr && l > 0) kv->Prefetch(l - 1);
    if (kv != nullptr) kv->Reduce(l);
  }
  if (context.stages->is_first()) context.parameters->Embedding(UnitUse::kGradient);
  if (kv != nullptr) kv->Rest();
}

}  // namespace stemma::worker
