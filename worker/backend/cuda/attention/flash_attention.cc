#include "worker/backend/cuda/attention/flash_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <algorithm>

#include "worker/backend/accumulate_type.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/ancestor_sums.h"

namespace stemma::worker::cuda {
namespace {

at::Tensor ByToken(const at::Tensor& x_HTE) { return x_HTE.transpose(0, 1); }

// [T, H·E] -> view [T, H, E].
at::Tensor Heads(const at::Tensor& x_TD, const at::Tensor& q_THE) {
  return x_TD.unflatten(1, {q_THE.size(1), q_THE.size(2)});
}

// Rows [begin, begin + batch · rows) of [T, ...] as [batch, rows, ...], a view.
at::Tensor Batch(const at::Tensor& x, int64_t begin, int64_t batch, int64_t rows) {
  return x.narrow(0, begin, batch * rows).unflatten(0, {batch, rows});
}

// The same rows of [H, T] as [batch, H, rows], which is read by its pointer.
at::Tensor BatchOfLse(const at::Tensor& lse_HT, int64_t begin, int64_t batch, int64_t rows) {
  return lse_HT.narrow(1, begin, batch * rows).unflatten(1, {batch, rows}).transpose(0, 1).contiguous();
}

// [batch, H, rows] -> [H, batch · rows]; [H, T] stays.
at::Tensor LseByToken(const at::Tensor& lse) { return lse.dim() == 2 ? lse : lse.transpose(0, 1).flatten(1, 2); }

at::Tensor RowsOfCall(const at::Tensor& x) { return x.dim() == 3 ? x : x.flatten(0, 1); }

// Keys [begin, end) of a call over one ancestor.
AncestorCall KeysOf(const AncestorCall& call, int64_t begin, int64_t end) {
  const auto keys = [&](const at::Tensor& x_CKE) {
    return x_CKE.defined() ? x_CKE.narrow(0, begin, end - begin) : x_CKE;
  };
  AncestorCall::Sequence sequence = call.sequences.front();
  const AncestorKv& kv = sequence.kv;
  sequence.kv = {keys(kv.k_CKE), keys(kv.v_CKE), keys(kv.gk_CKE), keys(kv.gv_CKE)};
  return {{sequence}, sequence.kv.k_CKE, sequence.kv.v_CKE};
}

at::Tensor NarrowLse(const at::Tensor& lse_HT, int64_t begin, int64_t end) {
  return lse_HT.narrow(1, begin, end - begin);
}

}  // namespace

FasterOptions OptionsWithDense(FlashAttentionOptions options, const FlashCalls& dense, const ShapeFamily& heads) {
  options.dense = &dense;
  options.admitted = ShapesOfHeads(heads);
  FasterOptions faster{options, std::move(options)};
  faster.checked.scores_of_lone_span = kScoresOfCheckedSpan;
  faster.in_use.flops_of_plans = kFlopsOfPlans;
  return faster;
}

FlashAttention::Output FlashAttention::Narrow(const Output& output, int64_t begin, int64_t end) {
  return {output.o_THE.narrow(0, begin, end - begin), NarrowLse(output.lse_HT, begin, end)};
}

void FlashAttention::ForOwnRows(const std::vector<OwnOutput>& own, int64_t begin, int64_t end, const OwnRowsDo& run) {
  for (const OwnOutput& part : own) {
    const int64_t first = std::max(begin, part.call.begin), last = std::min(end, part.call.end());
    if (first < last) run(Narrow(part.output, first - part.call.begin, last - part.call.begin), first, last);
  }
}

FlashAttention::FlashAttention(const FlashCalls& calls, FlashAttentionOptions options)
    : options_(std::move(options)),
      packed_{&calls, {}},
      dense_{options_.dense, {}},
      composed_(MakeComposedAttention()),
      offsets_(options_.send),
      plans_(options_.flops_of_plans) {}

// The one place that says which runs have no flash kernel: fp32 and fp64, and head sizes that FA2 lacks.
bool FlashAttention::NeedsComposed(const at::Tensor& q_HTE) const {
  return !packed_.calls->Takes(q_HTE.scalar_type(), q_HTE.size(2));
}

ShapeFamily FlashAttention::Causal(const Rows& rows) {
  return {rows.q_THE.size(1), rows.k_TKE.size(1), rows.q_THE.size(2), rows.q_THE.scalar_type(), /*causal=*/true};
}

ShapeFamily FlashAttention::NotCausal(const Rows& rows) {
  ShapeFamily family = Causal(rows);
  family.causal = false;
  return family;
}

bool FlashAttention::HasDense(const at::Tensor& q_THE) const {
  return dense_.calls != nullptr && dense_.calls->Takes(q_THE.scalar_type(), q_THE.size(2));
}

bool FlashAttention::AdmitsBatch(const std::vector<int64_t>& own_rows, const Rows& rows) const {
  if (!HasDense(rows.q_THE) || own_rows.empty() || !EquallyLong(own_rows)) return false;
  const int64_t spans = static_cast<int64_t>(own_rows.size()), count = own_rows.front();
  return options_.admitted.Admits({Causal(rows), spans, count, count});
}

bool FlashAttention::AdmitsAlone(const Rows& rows, int64_t count) const {
  return HasDense(rows.q_THE) && count * count * rows.q_THE.size(1) >= options_.scores_of_lone_span &&
         options_.admitted.Admits({Causal(rows), 1, count, count});
}

int64_t FlashAttention::AdmittedKeys(int64_t num_rows, int64_t keys, const Rows& rows) const {
  if (!HasDense(rows.q_THE)) return 0;
  return KeysOfFasterCall(keys, options_.admitted.MostKeys({NotCausal(rows), 1, num_rows, keys}));
}

void FlashAttention::BeginCalls(const AttentionBatch& batch, const Rows& rows) const {
  if (!HasDense(rows.q_THE)) return;
  const auto begin = [&](const DenseShape& shape, double flops_of_score) {
    const double scores = static_cast<double>(shape.rows) * static_cast<double>(shape.keys);
    plans_.Begin(shape, flops_of_score * scores * static_cast<double>(shape.family.heads * shape.family.head_size));
  };
  const auto never = [](const AncestorCall&) { return false; };
  const WaveCalls calls = WaveCallsOf(batch, rows.q_THE.size(0), never);
  for (const AncestorCall& call : calls.ancestors) {
    int64_t keys = call.k_CKE.size(0);
    for (int64_t first = 0; keys > 0; keys -= first) {
      first = AdmittedKeys(call.rows(), keys, rows);
      if (first == 0) break;
      begin({NotCausal(rows), 1, call.rows(), first}, /*flops_of_score=*/4);
      // The parts behind one without plans are not made (KeyParts): they must not get plans that no forward has used.
      if (!plans_.HasPlans({NotCausal(rows), 1, call.rows(), first})) break;
    }
  }
  if (AdmitsBatch(calls.own_rows, rows)) return;
  for (const int64_t count : calls.own_rows) {
    if (AdmitsAlone(rows, count)) begin({Causal(rows), 1, count, count}, /*flops_of_score=*/2);
  }
}

int64_t FlashAttention::DenseKeys(const AncestorCall& ancestor, const Rows& rows) const {
  if (ancestor.sequences.size() > 1) return 0;
  const int64_t keys = AdmittedKeys(ancestor.rows(), ancestor.k_CKE.size(0), rows);
  return keys > 0 && plans_.HasPlans({NotCausal(rows), 1, ancestor.rows(), keys}) ? keys : 0;
}

std::vector<AncestorCall> FlashAttention::KeyParts(const AncestorCall& ancestor, const Rows& rows) const {
  std::vector<AncestorCall> parts;
  AncestorCall rest = ancestor;
  while (true) {
    const int64_t keys = rest.k_CKE.size(0), first = DenseKeys(rest, rows);
    if (first == 0 || first == keys) break;
    parts.push_back(KeysOf(rest, 0, first));
    rest = KeysOf(rest, first, keys);
  }
  parts.push_back(std::move(rest));
  return parts;
}

WaveCalls FlashAttention::CallsOf(const AttentionBatch& batch, const Rows& rows) const {
  return WaveCallsOf(batch, rows.q_THE.size(0), [&](const AncestorCall& call) { return DenseKeys(call, rows) == 0; });
}

void FlashAttention::SetOffsets(const std::vector<int64_t>& rows, const std::vector<int64_t>& keys,
                                AttentionCall& call) const {
  call.offsets_q = offsets_.Get(OffsetsOf(rows), call.q.device());
  call.offsets_k = offsets_.Get(OffsetsOf(keys), call.q.device());
  call.max_q = *std::max_element(rows.begin(), rows.end());
  call.max_k = *std::max_element(keys.begin(), keys.end());
}

std::vector<OwnCall> FlashAttention::OwnCalls(const WaveCalls& calls, const Rows& rows) const {
  return OwnCallsOf(calls.own_rows, AdmitsBatch(calls.own_rows, rows), [&](int64_t count) {
    return AdmitsAlone(rows, count) && plans_.HasPlans({Causal(rows), 1, count, count});
  });
}

// A batch where the spans are one, or the dense library's, else packed.
AttentionCall FlashAttention::CallOf(const OwnCall& own, const Rows& rows) const {
  AttentionCall call{.causal = true, .scale = rows.scale};
  const int64_t batch = static_cast<int64_t>(own.rows.size()), count = own.rows.front();
  if (!own.dense && batch > 1) {
    call.q = rows.q_THE.narrow(0, own.begin, own.num_rows());
    call.k = rows.k_TKE.narrow(0, own.begin, own.num_rows());
    call.v = rows.v_TKE.narrow(0, own.begin, own.num_rows());
    SetOffsets(own.rows, own.rows, call);
    return call;
  }
  call.q = Batch(rows.q_THE, own.begin, batch, count);
  call.k = Batch(rows.k_TKE, own.begin, batch, count);
  call.v = Batch(rows.v_TKE, own.begin, batch, count);
  call.max_q = call.max_k = count;
  return call;
}

std::vector<FlashAttention::OwnOutput> FlashAttention::OwnForward(const WaveCalls& calls, const Rows& rows) const {
  std::vector<OwnOutput> outputs;
  for (const OwnCall& own : OwnCalls(calls, rows)) {
    const CallOutput output = (own.dense ? dense_ : packed_).Forward(CallOf(own, rows));
    outputs.push_back({own, {RowsOfCall(output.out), LseByToken(output.lse)}});
  }
  return outputs;
}

CallGradients FlashAttention::OwnBackward(const OwnCall& own, const Rows& rows, const OutputGradient& output) const {
  const AttentionCall call = CallOf(own, rows);
  const FlashLibrary& library = own.dense ? dense_ : packed_;
  if (call.packed()) {
    const auto queries = [&](const at::Tensor& x_THE) { return x_THE.narrow(0, own.begin, own.num_rows()); };
    return library.Backward(call, queries(output.do_THE), queries(output.o_THE),
                            NarrowLse(output.lse_HT, own.begin, own.end()).contiguous());
  }
  const auto queries = [&](const at::Tensor& x_THE) { return Batch(x_THE, own.begin, call.q.size(0), call.q.size(1)); };
  const CallGradients gradients =
      library.Backward(call, queries(output.do_THE), queries(output.o_THE),
                       BatchOfLse(output.lse_HT, own.begin, call.q.size(0), call.q.size(1)));
  return {RowsOfCall(gradients.dq), RowsOfCall(gradients.dk), RowsOfCall(gradients.dv)};
}

CallGradients FlashAttention::OwnBackward(const WaveCalls& calls, const Rows& rows,
                                          const OutputGradient& output) const {
  const std::vector<OwnCall> own = OwnCalls(calls, rows);
  if (own.size() == 1) return OwnBackward(own.front(), rows, output);
  const auto empty = [](const at::Tensor& x) { return at::empty_like(x, at::MemoryFormat::Contiguous); };
  CallGradients all{empty(rows.q_THE), empty(rows.k_TKE), empty(rows.v_TKE)};
  for (const OwnCall& call : own) {
    const CallGradients gradients = OwnBackward(call, rows, output);
    all.dq.narrow(0, call.begin, call.num_rows()).copy_(gradients.dq);
    all.dk.narrow(0, call.begin, call.num_rows()).copy_(gradients.dk);
    all.dv.narrow(0, call.begin, call.num_rows()).copy_(gradients.dv);
  }
  return all;
}

std::pair<AttentionCall, const FlashLibrary*> FlashAttention::CallOf(const AncestorCall& part, const Rows& rows) const {
  const int64_t count = part.rows(), keys = part.k_CKE.size(0);
  AttentionCall call{.scale = rows.scale};
  if (part.sequences.size() > 1) {
    call.q = rows.q_THE.narrow(0, part.begin(), count);
    call.k = part.k_CKE;
    call.v = part.v_CKE;
    std::vector<int64_t> rows_of_sequences, keys_of_sequences;
    for (const AncestorCall::Sequence& sequence : part.sequences) {
      rows_of_sequences.push_back(sequence.end - sequence.begin);
      keys_of_sequences.push_back(sequence.kv.k_CKE.size(0));
    }
    SetOffsets(rows_of_sequences, keys_of_sequences, call);
    return {call, &packed_};
  }
  call.q = Batch(rows.q_THE, part.begin(), 1, count);
  call.k = part.k_CKE.unsqueeze(0);
  call.v = part.v_CKE.unsqueeze(0);
  call.max_q = count;
  call.max_k = keys;
  return {call, DenseKeys(part, rows) == keys ? &dense_ : &packed_};
}

FlashAttention::Output FlashAttention::PartForward(const AncestorCall& part, const Rows& rows) const {
  const auto [call, library] = CallOf(part, rows);
  const CallOutput output = library->Forward(call);
  return {RowsOfCall(output.out), LseByToken(output.lse)};
}

FlashAttention::Output FlashAttention::AncestorForward(const AncestorCall& ancestor, const Rows& rows) const {
  Output joined;
  for (const AncestorCall& part : KeyParts(ancestor, rows)) {
    const Output next = PartForward(part, rows);
    if (!joined.o_THE.defined()) {
      joined = next;
      continue;
    }
    const Output both{at::empty_like(next.o_THE, at::MemoryFormat::Contiguous), at::empty_like(joined.lse_HT)};
    options_.kernels.merge({joined.o_THE, next.o_THE, joined.lse_HT, next.lse_HT, both.o_THE, both.lse_HT});
    joined = both;
  }
  return joined;
}

void FlashAttention::ChunkedBackward(const AncestorCall& ancestor, const Rows& rows, const OutputGradient& output,
                                     const Chunks& chunks, const at::Tensor& dq_THE) const {
  const auto [begin, count, rows_of_each] = chunks;
  const auto keys = [&](const at::Tensor& x_CKE) {
    return x_CKE.unsqueeze(0).expand({chunks.count, x_CKE.size(0), x_CKE.size(1), x_CKE.size(2)});
  };
  const auto queries = [&](const at::Tensor& x_THE) {
    return Batch(x_THE, chunks.begin, chunks.count, chunks.rows_of_each);
  };
  const AttentionCall call{.q = queries(rows.q_THE),
                           .k = keys(ancestor.k_CKE),
                           .v = keys(ancestor.v_CKE),
                           .max_q = rows_of_each,
                           .max_k = ancestor.k_CKE.size(0),
                           .causal = false,
                           .scale = rows.scale};
  const CallGradients gradients = packed_.Backward(call, queries(output.do_THE), queries(output.o_THE),
                                                   BatchOfLse(output.lse_HT, begin, count, rows_of_each));
  dq_THE.narrow(0, begin, count * rows_of_each).add_(RowsOfCall(gradients.dq));
  AddToAncestors(options_.kernels, ancestor, gradients.dk, gradients.dv);
}

void FlashAttention::PartBackward(const AncestorCall& part, const Rows& rows, const OutputGradient& output,
                                  const at::Tensor& dq_THE) const {
  const auto [call, library] = CallOf(part, rows);
  const int64_t begin = part.begin(), count = part.rows();
  if (library == &packed_ && !call.packed()) {
    const PrefixCall prefix{count, part.k_CKE.size(0), rows.q_THE.size(1)};
    const int64_t chunks = std::clamp<int64_t>(options_.chunks(prefix, options_.num_multiprocessors), 1, count);
    // The few rows that chunks of one length leave over are a call of their own.
    const int64_t rows_of_chunk = count / chunks, in_chunks = chunks * rows_of_chunk;
    ChunkedBackward(part, rows, output, {begin, chunks, rows_of_chunk}, dq_THE);
    if (in_chunks < count) ChunkedBackward(part, rows, output, {begin + in_chunks, 1, count - in_chunks}, dq_THE);
    return;
  }
  const auto queries = [&](const at::Tensor& x_THE) { return x_THE.narrow(0, begin, count).view(call.q.sizes()); };
  const at::Tensor lse = call.packed() ? NarrowLse(output.lse_HT, begin, part.end()).contiguous()
                                       : BatchOfLse(output.lse_HT, begin, 1, count);
  const CallGradients gradients = library->Backward(call, queries(output.do_THE), queries(output.o_THE), lse);
  // Summed in Acc and rounded once: so ATen adds two tensors of bf16.
  dq_THE.narrow(0, begin, count).add_(RowsOfCall(gradients.dq));
  const auto of_one = [](const at::Tensor& x) { return x.dim() == 3 ? x.unsqueeze(0) : x; };
  AddToAncestors(options_.kernels, part, of_one(gradients.dk), of_one(gradients.dv));
}

AttentionSaved FlashAttention::Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                                       const at::Tensor& v_TKE) const {
  if (NeedsComposed(q_HTE)) return composed_->Forward(batch, q_HTE, k_TKE, v_TKE);
  RECORD_USER_SCOPE("AttentionForward");
  const Rows rows{ByToken(q_HTE), k_TKE, v_TKE, batch.scale};
  BeginCalls(batch, rows);
  const WaveCalls calls = CallsOf(batch, rows);
  const int64_t num_rows = q_HTE.size(1), num_heads = q_HTE.size(0);
  AttentionSaved saved{q_HTE, k_TKE, v_TKE, {}, {}};
  const std::vector<OwnOutput> own = OwnForward(calls, rows);
  if (own.size() == 1 && calls.ancestors.empty()) {
    saved.o_TD = own.front().output.o_THE.reshape({num_rows, -1});
    saved.lse_HT = own.front().output.lse_HT.contiguous();
    return saved;
  }
  saved.o_TD = at::empty({num_rows, num_heads * q_HTE.size(2)}, q_HTE.options());
  saved.lse_HT = at::empty({num_heads, num_rows}, q_HTE.options().dtype(AccType(q_HTE.scalar_type())));
  const Output merged{Heads(saved.o_TD, rows.q_THE), saved.lse_HT};
  int64_t row = 0;
  const auto copy_own_until = [&](int64_t end) {
    ForOwnRows(own, row, end, [&](const Output& of_own, int64_t begin, int64_t end_of_own) {
      const Output to = Narrow(merged, begin, end_of_own);
      to.o_THE.copy_(of_own.o_THE);
      to.lse_HT.copy_(of_own.lse_HT);
    });
    row = end;
  };
  for (const AncestorCall& ancestor : calls.ancestors) {
    copy_own_until(ancestor.begin());
    const Output part = AncestorForward(ancestor, rows);
    ForOwnRows(own, ancestor.begin(), ancestor.end(), [&](const Output& of_own, int64_t begin, int64_t end) {
      const Output of_part = Narrow(part, begin - ancestor.begin(), end - ancestor.begin());
      const Output to = Narrow(merged, begin, end);
      options_.kernels.merge({of_part.o_THE, of_own.o_THE, of_part.lse_HT, of_own.lse_HT, to.o_THE, to.lse_HT});
    });
    row = ancestor.end();
  }
  copy_own_until(num_rows);
  return saved;
}

AttentionGradients FlashAttention::Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                                            const AttentionSaved& saved) const {
  if (NeedsComposed(saved.q_HTE)) return composed_->Backward(batch, do_TD, saved);
  RECORD_USER_SCOPE("AttentionBackward");
  CHECK(do_TD.sizes() == saved.o_TD.sizes());
  const Rows rows{ByToken(saved.q_HTE), saved.k_TKE, saved.v_TKE, batch.scale};
  const WaveCalls calls = CallsOf(batch, rows);
  const OutputGradient output{Heads(do_TD, rows.q_THE), Heads(saved.o_TD, rows.q_THE), saved.lse_HT};
  const CallGradients own = OwnBackward(calls, rows, output);
  for (const AncestorCall& ancestor : calls.ancestors) {
    for (const AncestorCall& part : KeyParts(ancestor, rows)) PartBackward(part, rows, output, own.dq);
  }
  return {own.dq.transpose(0, 1), own.dk, own.dv};
}

}  // namespace stemma::worker::cuda
