#include "worker/ops/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>

#include "worker/backend/cpu/head_rows.h"
#include "worker/ops/linear.h"
#include "worker/ops/run_type.h"

namespace stemma::worker {
namespace {

// Vocabulary rows of a bf16 weight that are upcast at a time.
constexpr int64_t kUpcastVocabulary = 8192;

// One call's state: the logits buffer of one chunk, reused by all, and what each row needs between forward and
// backward.
//
// In bf16 the operands are upcast and products made in fp32, slice by slice of the vocabulary: the CPU has no bf16 GEMM
// with fp32 output, and logits rounded to bf16's 8 bits would move a log-prob of 20 by up to 0.06, which is noise in
// every ratio exp(lp - old). A bf16 product is exact in fp32, so this is what a device's fp32-accumulating GEMM gives.
class HeadPass {
 public:
  HeadPass(const at::Tensor& hidden_TD, const at::Tensor& weight_VD, std::span<const int64_t> targets,
           const HeadOptions& options);

  int64_t rows() const { return hidden_TD_.size(0); }
  int64_t chunk_rows() const { return chunk_rows_; }
  HeadOutput& output() { return output_; }

  // Fills the logits buffer, and log-prob, entropy and softmax of these rows. At most chunk_rows rows.
  void Forward(RowRange range);
  // `range` is that of the last Forward. Adds to dweight_VD, writes these rows of dhidden_TD. Destroys the logits.
  void Backward(RowRange range, std::span<const double> dlog_prob, std::span<const double> dentropy,
                const at::Tensor& dhidden_TD, const at::Tensor& dweight_VD);

 private:
  // f(first vocabulary row, rows of the weight in the arithmetic's dtype).
  template <typename F>
  void ForVocabularySlices(const F& f) const;
  at::Tensor HiddenRows(RowRange range) const;
  template <typename T>
  void ForwardRows(RowRange range);
  template <typename T>
  void BackwardRows(RowRange range, std::span<const double> dlog_prob, std::span<const double> dentropy);

  const at::Tensor hidden_TD_, weight_VD_;
  const std::span<const int64_t> targets_;
  const HeadOptions options_;
  const at::ScalarType arithmetic_;
  const int64_t chunk_rows_;
  at::Tensor logits_CV_;
  std::vector<kernels::HeadRowSoftmax> softmax_;
  HeadOutput output_;
};

HeadPass::HeadPass(const at::Tensor& hidden_TD, const at::Tensor& weight_VD, std::span<const int64_t> targets,
                   const HeadOptions& options)
    : hidden_TD_(hidden_TD),
      weight_VD_(weight_VD),
      targets_(targets),
      options_(options),
      arithmetic_(AccType(hidden_TD.scalar_type())),
      chunk_rows_(std::min(options.chunk_rows, hidden_TD.size(0))) {
  CHECK_GT(options.chunk_rows, 0);
  CHECK_GT(options.temperature, 0);
  CHECK_EQ(hidden_TD.size(1), weight_VD.size(1));
  CHECK_EQ(static_cast<int64_t>(targets.size()), rows());
  CHECK(hidden_TD.scalar_type() == weight_VD.scalar_type());
  for (const int64_t target : targets) CHECK(target >= 0 && target < weight_VD.size(0)) << "target " << target;
  logits_CV_ = at::empty({chunk_rows_, weight_VD.size(0)}, hidden_TD.options().dtype(arithmetic_));
  softmax_.resize(rows());
  output_.log_prob.resize(rows());
  if (options.need_entropy) output_.entropy.resize(rows());
}

template <typename F>
void HeadPass::ForVocabularySlices(const F& f) const {
  const int64_t vocab = weight_VD_.size(0);
  const int64_t step = weight_VD_.scalar_type() == arithmetic_ ? vocab : kUpcastVocabulary;
  for (int64_t begin = 0; begin < vocab; begin += step) {
    f(begin, weight_VD_.narrow(0, begin, std::min(step, vocab - begin)).to(arithmetic_));
  }
}

at::Tensor HeadPass::HiddenRows(RowRange range) const {
  return hidden_TD_.narrow(0, range.begin, range.end - range.begin).to(arithmetic_);
}

template <typename T>
void HeadPass::ForwardRows(RowRange range) {
  kernels::HeadForward<T>({.logits_TV = Data<T>(logits_CV_),
                           .targets_T = targets_.data() + range.begin,
                           .softmax_T = softmax_.data() + range.begin,
                           .log_prob_T = output_.log_prob.data() + range.begin,
                           .entropy_T = options_.need_entropy ? output_.entropy.data() + range.begin : nullptr,
                           .rows = range.end - range.begin,
                           .vocab = logits_CV_.size(1),
                           .inverse_temperature = 1 / options_.temperature});
}

void HeadPass::Forward(RowRange range) {
  const at::Tensor hidden = HiddenRows(range);
  const at::Tensor logits = logits_CV_.narrow(0, 0, range.end - range.begin);
  ForVocabularySlices([&](int64_t begin, const at::Tensor& weight) {
    at::Tensor columns = logits.narrow(1, begin, weight.size(0));
    at::mm_out(columns, hidden, weight.t());
  });
  arithmetic_ == at::kDouble ? ForwardRows<double>(range) : ForwardRows<float>(range);
}

template <typename T>
void HeadPass::BackwardRows(RowRange range, std::span<const double> dlog_prob, std::span<const double> dentropy) {
  const bool entropy = options_.need_entropy;
  kernels::HeadBackward<T>({.logits_TV = Data<T>(logits_CV_),
                            .targets_T = targets_.data() + range.begin,
                            .softmax_T = softmax_.data() + range.begin,
                            .dlog_prob_T = dlog_prob.data(),
                            .entropy_T = entropy ? output_.entropy.data() + range.begin : nullptr,
                            .dentropy_T = entropy ? dentropy.data() : nullptr,
                            .rows = range.end - range.begin,
                            .vocab = logits_CV_.size(1),
                            .inverse_temperature = 1 / options_.temperature});
}

bool AllZero(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}

void HeadPass::Backward(RowRange range, std::span<const double> dlog_prob, std::span<const double> dentropy,
                        const at::Tensor& dhidden_TD, const at::Tensor& dweight_VD) {
  at::Tensor dhidden = dhidden_TD.narrow(0, range.begin, range.end - range.begin);
  if (AllZero(dlog_prob) && AllZero(dentropy)) {
    dhidden.zero_();
    return;
  }
  arithmetic_ == at::kDouble ? BackwardRows<double>(range, dlog_prob, dentropy)
                             : BackwardRows<float>(range, dlog_prob, dentropy);
  const at::Tensor dlogits = logits_CV_.narrow(0, 0, range.end - range.begin);
  LinearBackwardWeight(dlogits, HiddenRows(range), dweight_VD, /*dbias_O=*/{});
  if (dhidden.scalar_type() == arithmetic_) {
    at::mm_out(dhidden, dlogits, weight_VD_);
    return;
  }
  at::Tensor sum = at::zeros(dhidden.sizes(), dlogits.options());
  ForVocabularySlices(
      [&](int64_t begin, const at::Tensor& weight) { sum.addmm_(dlogits.narrow(1, begin, weight.size(0)), weight); });
  dhidden.copy_(sum);
}

std::span<const double> Rows(const std::vector<double>& values, RowRange range) {
  if (values.empty()) return {};
  return std::span(values).subspan(range.begin, range.end - range.begin);
}

std::span<double> Rows(std::vector<double>& values, RowRange range) {
  if (values.empty()) return {};
  return std::span(values).subspan(range.begin, range.end - range.begin);
}

// A pass with the loss's gradient and where it goes.
class HeadBackwardPass {
 public:
  HeadBackwardPass(HeadPass& pass, const RowGradient& gradient, bool need_entropy, const at::Tensor& dhidden_TD,
                   const at::Tensor& dweight_VD)
      : pass_(pass),
        gradient_(gradient),
        dhidden_TD_(dhidden_TD),
        dweight_VD_(dweight_VD),
        dlog_prob_(pass.rows()),
        dentropy_(need_entropy ? pass.rows() : 0) {}

  void RunChunk(RowRange chunk) {
    pass_.Forward(chunk);
    AskGradient(chunk);
    Backward(chunk);
  }

  // Whole rollouts that fit one chunk together.
  void RunRollouts(std::span<const RowRange> rollouts) {
    const RowRange chunk{rollouts.front().begin, rollouts.back().end};
    pass_.Forward(chunk);
    for (const RowRange& rollout : rollouts) AskGradient(rollout);
    Backward(chunk);
  }

  // A rollout longer than a chunk: all its log-probs first, then its chunks in reverse, of which the last still has its
  // logits.
  void RunLongRollout(RowRange rollout) {
    const int64_t step = pass_.chunk_rows();
    const int64_t last = rollout.begin + (rollout.end - rollout.begin - 1) / step * step;
    for (int64_t begin = rollout.begin; begin <= last; begin += step) pass_.Forward(Chunk(begin, rollout));
    AskGradient(rollout);
    for (int64_t begin = last; begin >= rollout.begin; begin -= step) {
      const RowRange chunk = Chunk(begin, rollout);
      const bool has_gradient = !AllZero(Rows(dlog_prob_, chunk)) || !AllZero(Rows(dentropy_, chunk));
      if (begin != last && has_gradient) pass_.Forward(chunk);
      Backward(chunk);
    }
  }

 private:
  RowRange Chunk(int64_t begin, RowRange rollout) const {
    return {begin, std::min(rollout.end, begin + pass_.chunk_rows())};
  }
  void AskGradient(RowRange range) {
    const HeadOutput& output = pass_.output();
    gradient_(range, Rows(output.log_prob, range), Rows(output.entropy, range), Rows(dlog_prob_, range),
              Rows(dentropy_, range));
  }
  void Backward(RowRange chunk) {
    pass_.Backward(chunk, Rows(dlog_prob_, chunk), Rows(dentropy_, chunk), dhidden_TD_, dweight_VD_);
  }

  HeadPass& pass_;
  const RowGradient& gradient_;
  const at::Tensor dhidden_TD_, dweight_VD_;
  std::vector<double> dlog_prob_, dentropy_;
};

void RunWholeRollouts(HeadBackwardPass& backward, std::span<const RowRange> rollouts, int64_t chunk_rows) {
  for (size_t first = 0; first < rollouts.size();) {
    if (rollouts[first].end - rollouts[first].begin > chunk_rows) {
      backward.RunLongRollout(rollouts[first++]);
      continue;
    }
    size_t end = first + 1;
    while (end < rollouts.size() && rollouts[end].end - rollouts[first].begin <= chunk_rows) ++end;
    backward.RunRollouts(rollouts.subspan(first, end - first));
    first = end;
  }
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

}  // namespace

HeadOutput HeadForward(const at::Tensor& hidden_TD, const at::Tensor& weight_VD, std::span<const int64_t> targets,
                       const HeadOptions& options) {
  RECORD_USER_SCOPE("HeadForward");
  HeadPass pass(hidden_TD, weight_VD, targets, options);
  for (int64_t begin = 0; begin < pass.rows(); begin += pass.chunk_rows()) {
    pass.Forward({begin, std::min(pass.rows(), begin + pass.chunk_rows())});
  }
  return std::move(pass.output());
}

HeadBackwardResult HeadForwardBackward(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                                       std::span<const int64_t> targets, const HeadOptions& options,
                                       std::span<const RowRange> rollouts, bool whole_rollouts,
                                       const RowGradient& gradient, const at::Tensor& dweight_VD) {
  RECORD_USER_SCOPE("HeadForwardBackward");
  HeadPass pass(hidden_TD, weight_VD, targets, options);
  CHECK(dweight_VD.sizes() == weight_VD.sizes());
  at::Tensor dhidden_TD = at::empty(hidden_TD.sizes(), hidden_TD.options());
  HeadBackwardPass backward(pass, gradient, options.need_entropy, dhidden_TD, dweight_VD);
  if (whole_rollouts) {
    CheckCover(rollouts, pass.rows());
    RunWholeRollouts(backward, rollouts, pass.chunk_rows());
  } else {
    for (int64_t begin = 0; begin < pass.rows(); begin += pass.chunk_rows()) {
      backward.RunChunk({begin, std::min(pass.rows(), begin + pass.chunk_rows())});
    }
  }
  return {std::move(pass.output()), dhidden_TD};
}

}  // namespace stemma::worker
