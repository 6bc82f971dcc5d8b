#include "worker/ops/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/round_up.h"
#include "worker/backend/accumulate_type.h"
#include "worker/ops/linear.h"

namespace stemma::worker {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Undefined stays undefined.
at::Tensor Rows(const at::Tensor& x, RowRange range) {
  return x.defined() ? x.narrow(0, range.begin, range.rows()) : at::Tensor();
}

// One call's state: the logits buffer of one chunk, reused by all, and what each row needs between forward and
// backward. Logits are in the accumulate dtype: rounded to bf16's 8 bits they would move a log-prob of 20 by up to
// 0.06, which is noise in every ratio exp(lp - old).
class HeadPass {
 public:
  HeadPass(const Backend& backend, const HeadInput& input, const HeadOptions& options);

  int64_t rows() const { return hidden_TD_.size(0); }
  int64_t chunk_rows() const { return chunk_rows_; }
  HeadOutput& output() { return output_; }

  // Fills the logits buffer, and log-prob, entropy and softmax of these rows. At most chunk_rows rows.
  void Forward(RowRange range);
  // Fills the logits buffer again, for rows whose Forward was before.
  void Recompute(RowRange range);
  // `range` is that of the last Forward. Adds to dweight_VD, writes these rows of dhidden_TD. Destroys the logits.
  void Backward(RowRange range, const at::Tensor& dlog_prob_T, const at::Tensor& dentropy_T,
                const at::Tensor& dhidden_TD, const at::Tensor& dweight_VD);

 private:
  at::Tensor Logits(RowRange range) const { return logits_CV_.narrow(0, 0, range.rows()); }
  // Returns where the gradients of these logits lie: in their place or, where products take them in the run dtype, in
  // the first part of each row's memory.
  at::Tensor DlogitsIn(const at::Tensor& logits_TV) const {
    if (!backend_.dlogits_in_run_dtype) return logits_TV;
    return logits_TV.view(hidden_TD_.scalar_type()).narrow(1, 0, logits_TV.size(1));
  }
  // Makes log-prob, entropy and softmax of these rows, which are of this rank's tokens, those of the whole vocabulary.
  void CombineShards(RowRange range);

  const Backend& backend_;
  const at::Tensor hidden_TD_, weight_VD_, targets_T_;
  const HeadOptions options_;
  const int64_t chunk_rows_;
  at::Tensor logits_CV_, softmax_T2_;
  HeadOutput output_;
};

HeadPass::HeadPass(const Backend& backend, const HeadInput& input, const HeadOptions& options)
    : backend_(backend),
      hidden_TD_(options.vocabulary.tp->GatherRows(input.hidden_TD, input.targets_T.numel())),
      weight_VD_(input.weight_VD),
      targets_T_(OwnTokens(options.vocabulary, input.targets_T, input.weight_VD.size(0))),
      options_(options),
      chunk_rows_(std::min(options.chunk_rows, input.targets_T.numel())) {
  CHECK_GT(options.chunk_rows, 0);
  CHECK_GT(options.temperature, 0);
  CHECK_EQ(hidden_TD_.size(1), weight_VD_.size(1));
  CHECK(hidden_TD_.scalar_type() == weight_VD_.scalar_type());
  const auto options_of = [&](at::ScalarType dtype) { return hidden_TD_.options().dtype(dtype); };
  const int64_t vocab = weight_VD_.size(0), row = RoundUp(vocab, backend.logits_row_quantum);
  logits_CV_ = at::empty({chunk_rows_, row}, options_of(AccType(hidden_TD_.scalar_type()))).narrow(1, 0, vocab);
  softmax_T2_ = at::empty({rows(), 2}, options_of(kRowType));
  output_.log_prob_T = at::empty({rows()}, options_of(kRowType));
  if (options.need_entropy) output_.entropy_T = at::empty({rows()}, options_of(kRowType));
}

void HeadPass::Recompute(RowRange range) {
  backend_.kernels.logits({.hidden_TD = Rows(hidden_TD_, range), .weight_VD = weight_VD_, .logits_TV = Logits(range)});
}

void HeadPass::Forward(RowRange range) {
  Recompute(range);
  const at::Tensor logits_TV = Logits(range);
  backend_.kernels.head_forward({.logits_TV = logits_TV,
                                 .targets_T = Rows(targets_T_, range),
                                 .softmax_T2 = Rows(softmax_T2_, range),
                                 .log_prob_T = Rows(output_.log_prob_T, range),
                                 .entropy_T = Rows(output_.entropy_T, range),
                                 .inverse_temperature = 1 / options_.temperature});
  if (options_.vocabulary.tp->size() > 1) CombineShards(range);
}

void HeadPass::CombineShards(RowRange range) {
  const at::Tensor log_prob_T = Rows(output_.log_prob_T, range), entropy_T = Rows(output_.entropy_T, range);
  const at::Tensor max_T = Rows(softmax_T2_, range).select(1, 0) * (1 / options_.temperature);
  const at::Tensor log_sum_T = Rows(softmax_T2_, range).select(1, 1);
  // This rank's tokens have: max u; log Σ e^(u - max); u - max of the target, or -∞; the entropy. Relative to a maximum
  // nothing cancels, however large u is.
  const at::Tensor is_others = Rows(targets_T_, range) < 0;
  std::vector<at::Tensor> numbers = {max_T, log_sum_T, (log_prob_T + log_sum_T).masked_fill(is_others, -kInfinity)};
  if (entropy_T.defined()) numbers.push_back(entropy_T);
  const at::Tensor all = options_.vocabulary.tp->Gather(at::stack(numbers));  // [ranks, numbers, rows]
  const at::Tensor whole_max_T = all.select(1, 0).amax(0), shifts = all.select(1, 0) - whole_max_T;
  const at::Tensor log_sums = all.select(1, 1) + shifts, whole_T = at::logsumexp(log_sums, {0});
  log_prob_T.copy_((all.select(1, 2) + shifts).amax(0) - whole_T);
  log_sum_T.copy_(whole_T + whole_max_T - max_T);
  if (!entropy_T.defined()) return;
  const at::Tensor log_weights = log_sums - whole_T;
  entropy_T.copy_((at::exp(log_weights) * (all.select(1, 3) - log_weights)).sum(0));
}

void HeadPass::Backward(RowRange range, const at::Tensor& dlog_prob_T, const at::Tensor& dentropy_T,
                        const at::Tensor& dhidden_TD, const at::Tensor& dweight_VD) {
  const at::Tensor logits_TV = Logits(range), dlogits_TV = DlogitsIn(logits_TV), dhidden = Rows(dhidden_TD, range);
  backend_.kernels.head_backward({.logits_TV = logits_TV,
                                  .dlogits_TV = dlogits_TV,
                                  .targets_T = Rows(targets_T_, range),
                                  .softmax_T2 = Rows(softmax_T2_, range),
                                  .dlog_prob_T = dlog_prob_T,
                                  .entropy_T = Rows(output_.entropy_T, range),
                                  .dentropy_T = dentropy_T,
                                  .inverse_temperature = 1 / options_.temperature});
  LinearBackwardWeight(backend_, dlogits_TV, Rows(hidden_TD_, range), dweight_VD, /*dbias_O=*/{});
  backend_.kernels.logits_backward({.dlogits_TV = dlogits_TV, .weight_VD = weight_VD_, .dhidden_TD = dhidden});
}

void CheckCover(std::span<const RowRange> rollouts, int64_t rows) {
  int64_t next = 0;
  for (const RowRange& rollout : rollouts) {
    CHECK_EQ(rollout.begin, next) << "rollouts are adjacent and in order";
    CHECK_GT(rollout.end, rollout.begin) << "a rollout without rows";
    next = rollout.end;
  }
  CHECK_EQ(next, rows);
}

std::vector<RowRange> ChunksOf(RowRange rows, int64_t chunk_rows) {
  std::vector<RowRange> chunks;
  for (int64_t begin = rows.begin; begin < rows.end; begin += chunk_rows) {
    chunks.push_back({begin, std::min(rows.end, begin + chunk_rows)});
  }
  return chunks;
}

// Returns the rows whose gradient is asked for at once: chunks, and rollouts that are longer than one.
std::vector<RowRange> GradientRanges(const HeadPass& pass, const HeadInput& input, const HeadOptions& options) {
  if (!options.whole_rollouts) return ChunksOf({0, pass.rows()}, pass.chunk_rows());
  CheckCover(input.rollouts, pass.rows());
  std::vector<RowRange> ranges;
  for (const RowRange& rollout : input.rollouts) {
    const bool fits = !ranges.empty() && rollout.end - ranges.back().begin <= pass.chunk_rows();
    if (!fits) ranges.push_back(rollout);
    ranges.back().end = rollout.end;
  }
  return ranges;
}

// A pass with the loss's gradient and where it goes.
class HeadBackwardPass {
 public:
  HeadBackwardPass(const Backend& backend, HeadPass& pass, const RowGradient& gradient, const at::Tensor& dhidden_TD,
                   const at::Tensor& dweight_VD)
      : reads_are_free_(backend.host_reads_are_free),
        pass_(pass),
        gradient_(gradient),
        dhidden_TD_(dhidden_TD),
        dweight_VD_(dweight_VD),
        dlog_prob_T_(at::empty_like(pass.output().log_prob_T)) {
    if (pass.output().entropy_T.defined()) dentropy_T_ = at::empty_like(pass.output().entropy_T);
  }

  void RunChunk(RowRange chunk) {
    pass_.Forward(chunk);
    AskGradient(chunk);
    Backward(chunk);
  }

  // Runs a rollout that is longer than a chunk: all its log-probs first, then its chunks in reverse, of which the last
  // still has its logits.
  void RunLongRollout(RowRange rollout) {
    const std::vector<RowRange> chunks = ChunksOf(rollout, pass_.chunk_rows());
    for (const RowRange& chunk : chunks) pass_.Forward(chunk);
    AskGradient(rollout);
    for (size_t i = chunks.size(); i-- > 0;) {
      if (i + 1 < chunks.size() && !IsKnownZero(chunks[i])) pass_.Recompute(chunks[i]);
      Backward(chunks[i]);
    }
  }

 private:
  void AskGradient(RowRange range) {
    const HeadOutput& output = pass_.output();
    gradient_(range, Rows(output.log_prob_T, range), Rows(output.entropy_T, range), Rows(dlog_prob_T_, range),
              Rows(dentropy_T_, range));
  }

  // Whether rows have no gradient, where that can be seen without waiting: their backward would add zeros.
  bool IsKnownZero(RowRange range) const {
    if (!reads_are_free_) return false;
    return AllZero(Rows(dlog_prob_T_, range)) && (!dentropy_T_.defined() || AllZero(Rows(dentropy_T_, range)));
  }
  static bool AllZero(const at::Tensor& x) {
    const auto* values = x.const_data_ptr<double>();
    return std::all_of(values, values + x.numel(), [](double value) { return value == 0; });
  }

  void Backward(RowRange chunk) {
    if (IsKnownZero(chunk)) {
      Rows(dhidden_TD_, chunk).zero_();
      return;
    }
    pass_.Backward(chunk, Rows(dlog_prob_T_, chunk), Rows(dentropy_T_, chunk), dhidden_TD_, dweight_VD_);
  }

  const bool reads_are_free_;
  HeadPass& pass_;
  const RowGradient& gradient_;
  const at::Tensor dhidden_TD_, dweight_VD_;
  at::Tensor dlog_prob_T_, dentropy_T_;
};

}  // namespace

HeadOutput HeadForward(const Backend& backend, const HeadInput& input, const HeadOptions& options) {
  RECORD_USER_SCOPE("HeadForward");
  HeadPass pass(backend, input, options);
  for (const RowRange& range : GradientRanges(pass, input, options)) {
    for (const RowRange& chunk : ChunksOf(range, pass.chunk_rows())) pass.Forward(chunk);
  }
  return std::move(pass.output());
}

HeadBackwardResult HeadForwardBackward(const Backend& backend, const HeadInput& input, const HeadOptions& options,
                                       const RowGradient& gradient, const at::Tensor& dweight_VD) {
  RECORD_USER_SCOPE("HeadForwardBackward");
  HeadPass pass(backend, input, options);
  CHECK(dweight_VD.sizes() == input.weight_VD.sizes());
  at::Tensor dhidden_TD = at::empty({pass.rows(), input.hidden_TD.size(1)}, input.hidden_TD.options());
  HeadBackwardPass backward(backend, pass, gradient, dhidden_TD, dweight_VD);
  for (const RowRange& range : GradientRanges(pass, input, options)) {
    range.rows() > pass.chunk_rows() ? backward.RunLongRollout(range) : backward.RunChunk(range);
  }
  return {std::move(pass.output()), options.vocabulary.tp->SumRows(dhidden_TD)};
}

}  // namespace stemma::worker
