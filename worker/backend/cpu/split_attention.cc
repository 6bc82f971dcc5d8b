#include "worker/backend/cpu/split_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <algorithm>

#include "worker/backend/accumulate_type.h"
#include "worker/backend/cpu/typed_data.h"

namespace stemma::worker {
namespace {

using Output = AttentionKernel::Output;
using KeyGradients = AttentionKernel::KeyGradients;

struct Shape {
  int64_t num_kv_heads, group, head_size;
  int64_t num_heads() const { return num_kv_heads * group; }
};

Shape ShapeOf(const at::Tensor& q_HTE, const at::Tensor& k_TKE) {
  CHECK_EQ(q_HTE.dim(), 3);
  CHECK_EQ(k_TKE.dim(), 3);
  CHECK_EQ(q_HTE.size(0) % k_TKE.size(1), 0) << q_HTE.size(0) << " query heads, " << k_TKE.size(1) << " kv heads";
  CHECK_EQ(q_HTE.size(1), k_TKE.size(0)) << "rows of the queries and of the keys";
  CHECK_EQ(q_HTE.size(2), k_TKE.size(2));
  return {k_TKE.size(1), q_HTE.size(0) / k_TKE.size(1), q_HTE.size(2)};
}

// Neighbouring spans of one ancestor: one ancestor call.
struct Run {
  int64_t begin, end;
  const AncestorKv* ancestor;  // null: none
  std::vector<AttentionSpan> spans;
  int64_t rows() const { return end - begin; }
  int64_t longest_span() const {
    int64_t longest = 0;
    for (const AttentionSpan& span : spans) longest = std::max(longest, span.end - span.begin);
    return longest;
  }
};

std::vector<Run> RunsOf(const AttentionBatch& batch, int64_t num_rows) {
  std::vector<Run> runs;
  int64_t row = 0;
  int64_t last_ancestor = -1;
  for (const AttentionSpan& span : batch.spans) {
    CHECK_EQ(span.begin, row) << "spans are adjacent and in order";
    CHECK_GE(span.end, span.begin);
    CHECK_LT(span.ancestor, static_cast<int64_t>(batch.ancestors.size()));
    row = span.end;
    if (span.begin == span.end) continue;
    if (runs.empty() || last_ancestor != span.ancestor) {
      runs.push_back({span.begin, span.end, span.ancestor < 0 ? nullptr : &batch.ancestors[span.ancestor], {}});
    }
    last_ancestor = span.ancestor;
    runs.back().end = span.end;
    runs.back().spans.push_back(span);
  }
  CHECK_EQ(row, num_rows) << "spans cover all rows";
  return runs;
}

// bf16 is computed in fp32: partial outputs would be rounded. Keys and values stay as they are: a kernel widens them.
at::Tensor Upcast(const at::Tensor& x) { return x.to(AccType(x.scalar_type())); }

// [T, H·E] -> view [K, g, T, E].
at::Tensor HeadsOfRows(const at::Tensor& x_TD, const Shape& shape) {
  return x_TD.view({x_TD.size(0), shape.num_kv_heads, shape.group, shape.head_size}).permute({1, 2, 0, 3});
}

// [K, g, T, ...] rows [begin, begin + count) -> [1, K, g, count, ...].
at::Tensor QueriesOf(const at::Tensor& x, int64_t begin, int64_t count) {
  return x.narrow(2, begin, count).unsqueeze(0);
}

// [K, T, E] rows -> [1, K, count, E].
at::Tensor KeysOf(const at::Tensor& x, int64_t begin, int64_t count) { return x.narrow(1, begin, count).unsqueeze(0); }

// The only batch entry.
Output OnlyEntry(const Output& part) { return {part.out.squeeze(0), part.lse.squeeze(0)}; }

// Rows of a run's spans, each padded on the right with zeros: [n, K, G, longest, ...] of x [K, G, T, ...].
at::Tensor Pad(const at::Tensor& x, const Run& run) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[2] = run.longest_span();
  sizes.insert(sizes.begin(), static_cast<int64_t>(run.spans.size()));
  at::Tensor padded = at::zeros(sizes, x.options());
  for (size_t i = 0; i < run.spans.size(); ++i) {
    const int64_t begin = run.spans[i].begin, count = run.spans[i].end - begin;
    padded.select(0, static_cast<int64_t>(i)).narrow(2, 0, count).copy_(x.narrow(2, begin, count));
  }
  return padded;
}

// out [K, g, rows, E], lse [K, g, rows], any strides.
template <typename A>
kernels::AttentionPart<A> PartOf(const Output& part) {
  CHECK_EQ(part.out.stride(3), 1);
  return {.out = StridedData<A>(part.out),
          .kv_stride = part.out.stride(0),
          .group_stride = part.out.stride(1),
          .row_stride = part.out.stride(2),
          .lse = StridedData<A>(part.lse),
          .lse_kv_stride = part.lse.stride(0),
          .lse_group_stride = part.lse.stride(1),
          .lse_row_stride = part.lse.stride(2)};
}

Output NarrowRows(const Output& part, int64_t begin, int64_t count) {
  return {part.out.narrow(2, begin, count), part.lse.narrow(2, begin, count)};
}

// Writes rows [span.begin, span.end) of saved.o_TD and saved.lse_HT. `ancestor` holds these rows only, or nothing.
void MergeSpan(const AttentionSpan& span, const Output* ancestor, const Output& own, const Shape& shape,
               AttentionSaved& saved) {
  DispatchRunType(saved.o_TD.scalar_type(), [&]<typename T>() {
    using A = kernels::Acc<T>;
    kernels::Merge<T>({.ancestor = ancestor == nullptr ? kernels::AttentionPart<A>{} : PartOf<A>(*ancestor),
                       .own = PartOf<A>(own),
                       .o_TD = Data<T>(saved.o_TD) + span.begin * shape.num_heads() * shape.head_size,
                       .lse_HT = Data<A>(saved.lse_HT) + span.begin,
                       .lse_head_stride = saved.lse_HT.size(1),
                       .rows = span.end - span.begin,
                       .num_kv_heads = shape.num_kv_heads,
                       .group = shape.group,
                       .head_size = shape.head_size});
  });
}

// What the calls of one direction share: head-major views of the whole wave.
struct Wave {
  const AttentionKernel& kernel;
  double scale;
  Shape shape;
  at::Tensor q_KgTE, k_KTE, v_KTE;
};

Wave WaveOf(const AttentionKernel& kernel, double scale, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
            const at::Tensor& v_TKE) {
  const Shape shape = ShapeOf(q_HTE, k_TKE);
  return {kernel,           scale,           shape, Upcast(q_HTE).unflatten(0, {shape.num_kv_heads, shape.group}),
          HeadMajor(k_TKE), HeadMajor(v_TKE)};
}

// All rows of a run over its ancestor's keys: [K, g, rows, E].
Output AncestorForward(const Wave& wave, const Run& run) {
  const AncestorKv& kv = *run.ancestor;
  return OnlyEntry(wave.kernel.Forward({.q = QueriesOf(wave.q_KgTE, run.begin, run.rows()),
                                        .k = HeadMajor(kv.k_CKE).unsqueeze(0),
                                        .v = HeadMajor(kv.v_CKE).unsqueeze(0),
                                        .causal = false,
                                        .scale = wave.scale}));
}

// A span's rows over its own keys.
AttentionKernel::Call CausalCall(const Wave& wave, const AttentionSpan& span) {
  const int64_t begin = span.begin, count = span.end - span.begin;
  return {.q = QueriesOf(wave.q_KgTE, begin, count),
          .k = KeysOf(wave.k_KTE, begin, count),
          .v = KeysOf(wave.v_KTE, begin, count),
          .causal = true,
          .scale = wave.scale};
}

// The rows of a run's spans, each over its own keys, padded: q [n, K, g, longest, E] and k, v [n, K, longest, E].
AttentionKernel::Call PaddedCall(const Wave& wave, const Run& run) {
  const auto keys = [&](const at::Tensor& x_KTE) { return Pad(x_KTE.unsqueeze(1), run).squeeze(2); };
  return {
      .q = Pad(wave.q_KgTE, run), .k = keys(wave.k_KTE), .v = keys(wave.v_KTE), .causal = true, .scale = wave.scale};
}

// Causal outputs of each span of a run, by the batch's layout, handed to `use` with the span's index in the run.
template <typename Use>
void ForEachCausalForward(const Wave& wave, const Run& run, CausalLayout layout, const Use& use) {
  if (layout == CausalLayout::kLoop || run.spans.size() == 1) {
    for (const AttentionSpan& span : run.spans) {
      use(span, OnlyEntry(wave.kernel.Forward(CausalCall(wave, span))));
    }
    return;
  }
  const AttentionKernel::Call padded = PaddedCall(wave, run);
  const Output all = wave.kernel.Forward(padded);
  for (size_t i = 0; i < run.spans.size(); ++i) {
    const int64_t entry = static_cast<int64_t>(i), count = run.spans[i].end - run.spans[i].begin;
    use(run.spans[i], NarrowRows({all.out.select(0, entry), all.lse.select(0, entry)}, 0, count));
  }
}

// The gradients of one causal call: dq [K, g, rows, E], dk and dv [K, rows, E].
struct OwnGradients {
  at::Tensor dq, dk, dv;
};

KeyGradients ZeroGradients(const at::Tensor& k) {
  const auto zeros = [&] { return at::zeros(k.sizes(), k.options().dtype(AccType(k.scalar_type()))); };
  return {zeros(), zeros()};
}

// What backward reads beside q, k, v.
struct WaveOutput {
  at::Tensor do_KgTE, o_KgTE, lse_KgT;
};

OwnGradients CausalBackward(const Wave& wave, const WaveOutput& output, const AttentionSpan& span) {
  const int64_t begin = span.begin, count = span.end - span.begin;
  const auto queries = [&](const at::Tensor& x) { return QueriesOf(x, begin, count); };
  const AttentionKernel::Call call = CausalCall(wave, span);
  const KeyGradients sums = ZeroGradients(call.k);
  const at::Tensor dq =
      wave.kernel.Backward(call, {queries(output.o_KgTE), queries(output.lse_KgT)}, queries(output.do_KgTE), sums);
  return {dq.squeeze(0), sums.dk.squeeze(0), sums.dv.squeeze(0)};
}

// As forward. Padded rows carry do = 0 and lse = 0: their scores are 0, so every term of theirs vanishes.
template <typename Use>
void ForEachCausalBackward(const Wave& wave, const WaveOutput& output, const Run& run, CausalLayout layout,
                           const Use& use) {
  if (layout == CausalLayout::kLoop || run.spans.size() == 1) {
    for (const AttentionSpan& span : run.spans) use(span, CausalBackward(wave, output, span));
    return;
  }
  const AttentionKernel::Call padded = PaddedCall(wave, run);
  const KeyGradients sums = ZeroGradients(padded.k);
  const at::Tensor dq =
      wave.kernel.Backward(padded, {Pad(output.o_KgTE, run), Pad(output.lse_KgT, run)}, Pad(output.do_KgTE, run), sums);
  for (size_t i = 0; i < run.spans.size(); ++i) {
    const int64_t entry = static_cast<int64_t>(i), count = run.spans[i].end - run.spans[i].begin;
    use(run.spans[i],
        OwnGradients{dq.select(0, entry).narrow(2, 0, count), sums.dk.select(0, entry).narrow(1, 0, count),
                     sums.dv.select(0, entry).narrow(1, 0, count)});
  }
}

// Adds to the ancestor's gK, gV; returns dq of the run's rows, [K, g, rows, E].
at::Tensor AncestorBackward(const Wave& wave, const WaveOutput& output, const Run& run) {
  const AncestorKv& kv = *run.ancestor;
  const auto queries = [&](const at::Tensor& x) { return QueriesOf(x, run.begin, run.rows()); };
  const auto keys = [](const at::Tensor& x_CKE) { return HeadMajor(x_CKE).unsqueeze(0); };
  const AttentionKernel::Call call = {
      .q = queries(wave.q_KgTE), .k = keys(kv.k_CKE), .v = keys(kv.v_CKE), .causal = false, .scale = wave.scale};
  const at::Tensor dq = wave.kernel.Backward(call, {queries(output.o_KgTE), queries(output.lse_KgT)},
                                             queries(output.do_KgTE), {keys(kv.gk_CKE), keys(kv.gv_CKE)});
  return dq.squeeze(0);
}

// A span's rows of a tensor that holds its run's, [K, g, rows, E]; undefined stays undefined.
at::Tensor SpanRows(const at::Tensor& run_rows, const AttentionSpan& span, const Run& run) {
  return run_rows.defined() ? run_rows.narrow(2, span.begin - run.begin, span.end - span.begin) : at::Tensor();
}

template <typename A>
kernels::HeadGradients<A> HeadGradientsOf(const at::Tensor& x_KgTE) {
  if (!x_KgTE.defined()) return {};
  CHECK_EQ(x_KgTE.stride(3), 1);
  return {StridedData<A>(x_KgTE), x_KgTE.stride(0), x_KgTE.stride(1), x_KgTE.stride(2)};
}

// Rows of a span of `out` ([heads, T, E]) from its parts' gradients ([K, g, rows, E]): their sum.
void CombineSpan(const at::Tensor& first, const at::Tensor& second, const AttentionSpan& span, const at::Tensor& out) {
  DispatchRunType(out.scalar_type(), [&]<typename T>() {
    using A = kernels::Acc<T>;
    kernels::CombineHeads<T>({.first = HeadGradientsOf<A>(first),
                              .second = HeadGradientsOf<A>(second),
                              .out = Data<T>(out) + span.begin * out.size(2),
                              .out_head_stride = out.size(1) * out.size(2),
                              .rows = span.end - span.begin,
                              .num_kv_heads = first.size(0),
                              .group = first.size(1),
                              .head_size = first.size(3)});
  });
}

}  // namespace

AttentionSaved SplitAttention::Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                                       const at::Tensor& v_TKE) const {
  RECORD_USER_SCOPE("AttentionForward");
  const Wave wave = WaveOf(*kernel_, batch.scale, q_HTE, k_TKE, v_TKE);
  const int64_t num_rows = q_HTE.size(1);
  AttentionSaved saved{q_HTE, k_TKE, v_TKE,
                       at::empty({num_rows, wave.shape.num_heads() * wave.shape.head_size}, q_HTE.options()),
                       at::empty({wave.shape.num_heads(), num_rows}, wave.q_KgTE.options())};
  for (const Run& run : RunsOf(batch, num_rows)) {
    Output ancestor;
    if (run.ancestor != nullptr) ancestor = AncestorForward(wave, run);
    ForEachCausalForward(wave, run, batch.layout, [&](const AttentionSpan& span, const Output& own) {
      if (run.ancestor == nullptr) {
        MergeSpan(span, nullptr, own, wave.shape, saved);
      } else {
        const Output rows = NarrowRows(ancestor, span.begin - run.begin, span.end - span.begin);
        MergeSpan(span, &rows, own, wave.shape, saved);
      }
    });
  }
  return saved;
}

AttentionGradients SplitAttention::Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                                            const AttentionSaved& saved) const {
  RECORD_USER_SCOPE("AttentionBackward");
  const Wave wave = WaveOf(*kernel_, batch.scale, saved.q_HTE, saved.k_TKE, saved.v_TKE);
  CHECK(do_TD.sizes() == saved.o_TD.sizes());
  const WaveOutput output{HeadsOfRows(Upcast(do_TD), wave.shape), HeadsOfRows(Upcast(saved.o_TD), wave.shape),
                          saved.lse_HT.unflatten(0, {wave.shape.num_kv_heads, wave.shape.group})};
  const auto options = saved.q_HTE.options();
  AttentionGradients gradients{at::empty(saved.q_HTE.sizes(), options), at::empty(saved.k_TKE.sizes(), options),
                               at::empty(saved.v_TKE.sizes(), options)};
  for (const Run& run : RunsOf(batch, do_TD.size(0))) {
    at::Tensor dq_ancestor;
    if (run.ancestor != nullptr) dq_ancestor = AncestorBackward(wave, output, run);
    ForEachCausalBackward(wave, output, run, batch.layout, [&](const AttentionSpan& span, const OwnGradients& own) {
      CombineSpan(own.dq, SpanRows(dq_ancestor, span, run), span, gradients.dq_HTE);
      HeadMajor(gradients.dk_TKE.narrow(0, span.begin, span.end - span.begin)).copy_(own.dk);
      HeadMajor(gradients.dv_TKE.narrow(0, span.begin, span.end - span.begin)).copy_(own.dv);
    });
  }
  return gradients;
}

}  // namespace stemma::worker
