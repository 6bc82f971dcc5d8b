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

ShapeFamily FamilyOf(const at::Tensor& q_THE, const at::Tensor& k_TKE, bool causal) {
  return {q_THE.size(1), k_TKE.size(1), q_THE.size(2), q_THE.scalar_type(), causal};
}

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

void FlashAttention::RngStates::Keep(at::Device device, const RngState& rng) {
  for (auto& [kept_device, kept] : states_) {
    if (kept_device == device) {
      kept = rng;
      return;
    }
  }
  states_.emplace_back(device, rng);
}

const RngState& FlashAttention::RngStates::Get(at::Device device) const {
  const auto found = std::find_if(states_.begin(), states_.end(), [&](const auto& x) { return x.first == device; });
  CHECK(found != states_.end()) << "a backward before any forward on " << device;
  return found->second;
}

CallOutput FlashAttention::Library::Forward(const AttentionCall& call) const {
  CallOutput output = calls->Forward(call);
  rng.Keep(call.q.device(), output.rng);
  return output;
}

CallGradients FlashAttention::Library::Backward(const AttentionCall& call, const at::Tensor& dout,
                                                const at::Tensor& out, const at::Tensor& lse) const {
  return calls->Backward(call, {dout, out, lse, rng.Get(call.q.device())});
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

bool FlashAttention::HasDense(const at::Tensor& q_THE) const {
  return dense_.calls != nullptr && dense_.calls->Takes(q_THE.scalar_type(), q_THE.size(2));
}

bool FlashAttention::RunsOwnDense(const Rows& rows, int64_t batch, int64_t count) const {
  return HasDense(rows.q_THE) &&
         options_.admitted.Admits({FamilyOf(rows.q_THE, rows.k_TKE, true), batch, count, count});
}

int64_t FlashAttention::AdmittedKeys(const AncestorCall& ancestor, const Rows& rows) const {
  if (!HasDense(rows.q_THE) || ancestor.sequences.size() > 1) return 0;
  const ShapeFamily family = FamilyOf(rows.q_THE, rows.k_TKE, /*causal=*/false);
  const int64_t keys = ancestor.k_CKE.size(0);
  return KeysOfFasterCall(keys, options_.admitted.MostKeys({family, 1, ancestor.rows(), keys}));
}

void FlashAttention::BeginCalls(const AttentionBatch& batch, const Rows& rows) const {
  if (!HasDense(rows.q_THE)) return;
  const auto never = [](const AncestorCall&) { return false; };
  const ShapeFamily family = FamilyOf(rows.q_THE, rows.k_TKE, /*causal=*/false);
  for (const AncestorCall& call : WaveCallsOf(batch, rows.q_THE.size(0), never).ancestors) {
    const int64_t keys = AdmittedKeys(call, rows);
    if (keys == 0) continue;
    const double flops = 4 * static_cast<double>(call.rows()) * static_cast<double>(keys) *
                         static_cast<double>(family.heads * family.head_size);
    plans_.Begin({family, 1, call.rows(), keys}, flops);
  }
}

int64_t FlashAttention::DenseKeys(const AncestorCall& ancestor, const Rows& rows) const {
  const int64_t keys = AdmittedKeys(ancestor, rows);
  if (keys == 0) return 0;
  return plans_.HasPlans({FamilyOf(rows.q_THE, rows.k_TKE, /*causal=*/false), 1, ancestor.rows(), keys}) ? keys : 0;
}

std::vector<AncestorCall> FlashAttention::KeyParts(const AncestorCall& ancestor, const Rows& rows) const {
  const int64_t keys = ancestor.k_CKE.size(0), first = DenseKeys(ancestor, rows);
  if (first == 0 || first == keys) return {ancestor};
  return {KeysOf(ancestor, 0, first), KeysOf(ancestor, first, keys)};
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

std::pair<AttentionCall, const FlashAttention::Library*> FlashAttention::OwnCall(const WaveCalls& calls,
                                                                                 const Rows& rows) const {
  const int64_t batch = static_cast<int64_t>(calls.own_rows.size()), count = calls.own_rows.front();
  AttentionCall call{.causal = true, .scale = rows.scale};
  const bool admitted = calls.equally_long() && RunsOwnDense(rows, batch, count);
  if (!admitted && batch > 1) {
    call.q = rows.q_THE;
    call.k = rows.k_TKE;
    call.v = rows.v_TKE;
    SetOffsets(calls.own_rows, calls.own_rows, call);
    return {call, &packed_};
  }
  call.q = Batch(rows.q_THE, 0, batch, count);
  call.k = Batch(rows.k_TKE, 0, batch, count);
  call.v = Batch(rows.v_TKE, 0, batch, count);
  call.max_q = call.max_k = count;
  return {call, admitted ? &dense_ : &packed_};
}

FlashAttention::Output FlashAttention::OwnForward(const WaveCalls& calls, const Rows& rows) const {
  const auto [call, library] = OwnCall(calls, rows);
  const CallOutput output = library->Forward(call);
  return {RowsOfCall(output.out), LseByToken(output.lse)};
}

CallGradients FlashAttention::OwnBackward(const WaveCalls& calls, const Rows& rows,
                                          const OutputGradient& output) const {
  const auto [call, library] = OwnCall(calls, rows);
  if (call.packed()) return library->Backward(call, output.do_THE, output.o_THE, output.lse_HT);
  const int64_t batch = call.q.size(0), count = call.q.size(1);
  const CallGradients gradients =
      library->Backward(call, Batch(output.do_THE, 0, batch, count), Batch(output.o_THE, 0, batch, count),
                        BatchOfLse(output.lse_HT, 0, batch, count));
  return {RowsOfCall(gradients.dq), RowsOfCall(gradients.dk), RowsOfCall(gradients.dv)};
}

std::pair<AttentionCall, const FlashAttention::Library*> FlashAttention::CallOf(const AncestorCall& part,
                                                                                const Rows& rows) const {
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
  Output own;
  if (num_rows > 0) own = OwnForward(calls, rows);
  if (num_rows > 0 && calls.ancestors.empty()) {
    saved.o_TD = own.o_THE.reshape({num_rows, -1});
    saved.lse_HT = own.lse_HT.contiguous();
    return saved;
  }
  saved.o_TD = at::empty({num_rows, num_heads * q_HTE.size(2)}, q_HTE.options());
  saved.lse_HT = at::empty({num_heads, num_rows}, q_HTE.options().dtype(AccType(q_HTE.scalar_type())));
  const at::Tensor o_THE = Heads(saved.o_TD, rows.q_THE);
  int64_t row = 0;
  const auto copy_own_until = [&](int64_t end) {
    if (row < end) {
      o_THE.narrow(0, row, end - row).copy_(own.o_THE.narrow(0, row, end - row));
      NarrowLse(saved.lse_HT, row, end).copy_(NarrowLse(own.lse_HT, row, end));
    }
    row = end;
  };
  for (const AncestorCall& ancestor : calls.ancestors) {
    copy_own_until(ancestor.begin());
    const int64_t begin = ancestor.begin(), end = ancestor.end();
    const Output part = AncestorForward(ancestor, rows);
    options_.kernels.merge({part.o_THE, own.o_THE.narrow(0, begin, end - begin), part.lse_HT,
                            NarrowLse(own.lse_HT, begin, end), o_THE.narrow(0, begin, end - begin),
                            NarrowLse(saved.lse_HT, begin, end)});
    row = end;
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
  if (rows.q_THE.size(0) == 0) {
    return {at::empty_like(saved.q_HTE), at::empty_like(saved.k_TKE), at::empty_like(saved.v_TKE)};
  }
  const WaveCalls calls = CallsOf(batch, rows);
  const OutputGradient output{Heads(do_TD, rows.q_THE), Heads(saved.o_TD, rows.q_THE), saved.lse_HT};
  const CallGradients own = OwnBackward(calls, rows, output);
  for (const AncestorCall& ancestor : calls.ancestors) {
    for (const AncestorCall& part : KeyParts(ancestor, rows)) PartBackward(part, rows, output, own.dq);
  }
  return {own.dq.transpose(0, 1), own.dk, own.dv};
}

}  // namespace stemma::worker::cuda
