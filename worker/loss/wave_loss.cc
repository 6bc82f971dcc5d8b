#include "worker/loss/wave_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <glog/logging.h>

#include <algorithm>
#include <array>

#include "common/base/arrays.h"
#include "common/trace/loss_names.h"
#include "worker/backend/accumulate_type.h"

namespace stemma::worker {
namespace {

using From = v1::LogProbSource::From;

void Append(const FloatArray& values, std::vector<double>& out) {
  for (int64_t i = 0; i < values.size(); ++i) out.push_back(values[i]);
}

// The log-probs that `from` names; nothing where none are read, or where they are the wave's own (ON_POLICY).
void AppendSource(From from, const std::string& client, const LossMember& member, const std::vector<double>* computed,
                  std::vector<double>& out) {
  switch (from) {
    case v1::LogProbSource::CLIENT:
      return Append(FloatArray(client), out);
    case v1::LogProbSource::ROLLOUT:
      return Append(FloatArray(member.rollout->rollout_log_probs()), out);
    case v1::LogProbSource::WEIGHTS:
      CHECK(computed != nullptr) << "the log-prob pass did not run";
      out.insert(out.end(), computed->begin(), computed->end());
      return;
    default:
      return;
  }
}

// `values`, or `otherwise` on each of `rows` rows where the rollout sends none.
void AppendOr(const FloatArray& values, double otherwise, size_t rows, std::vector<double>& out) {
  if (values.empty()) {
    out.insert(out.end(), rows, otherwise);
  } else {
    Append(values, out);
  }
}

// What a wave's loss reads, in host memory; one that the loss does not read stays empty.
struct HostRows {
  std::vector<int64_t> rollout;
  std::vector<double> old_log_prob, ref_log_prob, advantage, importance_weight, loss_weight, weight, mask;
};

void AddMember(const LossPlan& plan, const LossModeRequirements& reads, bool importance, const LossMember& member,
               int64_t index, HostRows& host) {
  const v1::Rollout& rollout = *member.rollout;
  const TokenArray response(rollout.response_tokens());
  const auto rows = static_cast<size_t>(response.size());
  host.rollout.insert(host.rollout.end(), rows, index);
  if (reads.needs_old) {
    AppendSource(plan.old_from, rollout.old_log_probs(), member, member.old_log_probs, host.old_log_prob);
  }
  AppendSource(plan.ref_from, rollout.ref_log_prob(), member, member.ref_log_probs, host.ref_log_prob);
  if (reads.needs_advantage) {
    AppendOr(FloatArray(rollout.token_advantages()), rollout.advantage(), rows, host.advantage);
  }
  if (importance) AppendOr(FloatArray(rollout.rollout_is_weights()), 1, rows, host.importance_weight);
  if (reads.needs_loss_weights) AppendOr(FloatArray(rollout.loss_weights()), 0, rows, host.loss_weight);
  const MaskView mask(rollout.response_mask(), response.size());
  for (int64_t t = 0; t < response.size(); ++t) {
    host.mask.push_back(mask[t] ? 1 : 0);
    host.weight.push_back(mask[t] ? member.weight : 0);
  }
}

// Sends columns of one length to the device in one copy; an empty one stays undefined there.
template <typename T, size_t N>
void Send(const Backend& backend, at::ScalarType dtype,
          const std::array<std::pair<const std::vector<T>*, at::Tensor*>, N>& columns) {
  std::vector<std::pair<const std::vector<T>*, at::Tensor*>> sent;
  for (const auto& column : columns) {
    if (!column.first->empty()) sent.push_back(column);
  }
  const auto rows = static_cast<int64_t>(sent.front().first->size());
  const at::Tensor host =
      at::empty({static_cast<int64_t>(sent.size()), rows}, at::TensorOptions(at::kCPU).dtype(dtype));
  T* out = host.mutable_data_ptr<T>();
  for (const auto& [values, tensor] : sent) {
    CHECK_EQ(static_cast<int64_t>(values->size()), rows);
    out = std::copy(values->begin(), values->end(), out);
  }
  const at::Tensor device = backend.send(host, backend.device);
  for (size_t i = 0; i < sent.size(); ++i) *sent[i].second = device.select(0, static_cast<int64_t>(i));
}

// Returns `f` of each column that is there.
template <typename F>
LossRows EachOf(const LossRows& rows, const F& f) {
  const auto of = [&](const at::Tensor& x) { return x.defined() ? f(x) : x; };
  return {of(rows.old_log_prob_T), of(rows.ref_log_prob_T), of(rows.advantage_T), of(rows.importance_weight_T),
          of(rows.loss_weight_T),  of(rows.weight_T),       of(rows.mask_T),      of(rows.rollout_T)};
}

}  // namespace

WaveLoss::WaveLoss(const LossPlan& plan, const Backend& backend, const std::vector<LossMember>& members,
                   const SharedRows* shared)
    : plan_(plan), backend_(backend), shared_(shared), sums_(at::zeros({kNumLossSums}, backend.options(kRowType))) {
  const LossModeRequirements reads = RequirementsOf(plan.options.mode);
  const bool importance = std::any_of(members.begin(), members.end(), [](const LossMember& member) {
    return !member.rollout->rollout_is_weights().empty();
  });
  HostRows host;
  for (size_t i = 0; i < members.size(); ++i) {
    AddMember(plan, reads, importance, members[i], static_cast<int64_t>(i), host);
  }
  if (reads.needs_whole_rollouts) Send<int64_t, 1>(backend, at::kLong, {{{&host.rollout, &rows_.rollout_T}}});
  Send<double, 7>(backend, kRowType,
                  {{{&host.old_log_prob, &rows_.old_log_prob_T},
                    {&host.ref_log_prob, &rows_.ref_log_prob_T},
                    {&host.advantage, &rows_.advantage_T},
                    {&host.importance_weight, &rows_.importance_weight_T},
                    {&host.loss_weight, &rows_.loss_weight_T},
                    {&host.weight, &rows_.weight_T},
                    {&host.mask, &rows_.mask_T}}});
  CHECK(shared_ == nullptr || members.size() == 1) << "ranks share the rows of one rollout";
  if (shared_ != nullptr && !whole_rollouts()) rows_ = EachOf(rows_, shared_->own);
}

RowGradient WaveLoss::gradient() {
  return [this](RowRange range, const at::Tensor& log_prob_T, const at::Tensor& entropy_T,
                const at::Tensor& dlog_prob_T, const at::Tensor& dentropy_T) {
    if (shared_ != nullptr && whole_rollouts()) {
      return RunOnAllRows(log_prob_T, entropy_T, dlog_prob_T, dentropy_T);
    }
    const LossRows rows = EachOf(rows_, [&](const at::Tensor& x) { return x.narrow(0, range.begin, range.rows()); });
    Run(rows, log_prob_T, entropy_T, dlog_prob_T, dentropy_T, sums_);
  };
}

void WaveLoss::Run(const LossRows& rows, const at::Tensor& log_prob_T, const at::Tensor& entropy_T,
                   const at::Tensor& dlog_prob_T, const at::Tensor& dentropy_T, const at::Tensor& sums) const {
  backend_.kernels.loss({.options = plan_.options,
                         .rows = rows,
                         .log_prob_T = log_prob_T,
                         .entropy_T = entropy_T,
                         .dlog_prob_T = dlog_prob_T,
                         .dentropy_T = dentropy_T,
                         .sums = sums});
}

// A ratio of the whole rollout takes the log-probs of all ranks.
void WaveLoss::RunOnAllRows(const at::Tensor& log_prob_T, const at::Tensor& entropy_T, const at::Tensor& dlog_prob_T,
                            const at::Tensor& dentropy_T) const {
  const HeadOutput all = shared_->gather({log_prob_T, entropy_T});
  const at::Tensor dall_T = at::empty_like(all.log_prob_T);
  const at::Tensor dall_entropy_T = dentropy_T.defined() ? at::empty_like(all.log_prob_T) : at::Tensor();
  Run(rows_, all.log_prob_T, all.entropy_T, dall_T, dall_entropy_T, shared_->is_first ? sums_ : at::zeros_like(sums_));
  dlog_prob_T.copy_(shared_->own(dall_T));
  if (dentropy_T.defined()) dentropy_T.copy_(shared_->own(dall_entropy_T));
}

LossSums& LossSums::operator+=(const LossSums& other) {
  pg += other.pg;
  kl += other.kl;
  entropy += other.entropy;
  clipped += other.clipped;
  clipped_lower += other.clipped_lower;
  neg_log_ratio += other.neg_log_ratio;
  tokens += other.tokens;
  plain_entropy += other.plain_entropy;
  return *this;
}

LossSums LossSumsOf(const double* sums) {
  return {.pg = sums[kSumPg],
          .kl = sums[kSumKl],
          .entropy = sums[kSumEntropy],
          .clipped = sums[kSumClipped],
          .clipped_lower = sums[kSumClippedLower],
          .neg_log_ratio = sums[kSumNegLogRatio],
          .tokens = sums[kSumTokens],
          .plain_entropy = sums[kSumPlainEntropy]};
}

}  // namespace stemma::worker
