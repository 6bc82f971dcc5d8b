#include "worker/engine/live_wave.h"

#include <utility>

#include "worker/engine/results.h"

namespace stemma::worker {

void WaveHead::Run(at::Tensor hidden_BD, const at::Tensor& targets_B, LiveWave& live) const {
  const Backend& backend = *context_.backend;
  const Parameter& head = context_.weights->at(context_.weights->head);
  context_.parameters->Head(head_use());
  if (loss_ == nullptr) {
    StartRead(live, PackResults(HeadForward(backend, hidden_BD, head.weight, targets_B, head_), {}));
    return;
  }
  WaveLoss loss(*loss_, backend, LossMembers(live.members));
  HeadBackwardResult result =
      HeadForwardBackward(backend, hidden_BD, head.weight, targets_B, head_, loss.head_loss(), head.grad);
  live.dhidden_BD = std::move(result.dhidden_TD);
  StartRead(live, PackResults(result.output, loss.sums()));
}

void WaveHead::StartRead(LiveWave& live, const at::Tensor& numbers) const {
  live.results = {live.members, context_.backend->start_read(numbers)};
}

std::vector<LossMember> WaveHead::LossMembers(const std::vector<MemberRows>& members) const {
  std::vector<LossMember> loss_members;
  for (const MemberRows& m : members) {
    loss_members.push_back({.rollout = &payload_.groups[m.group].rollouts(static_cast<int>(m.rollout)),
                            .weight = loss_->weights[m.group][m.rollout],
                            .old_log_probs = payload_.FindEntryLogProbs(loss_->old_weights, m.group, m.rollout),
                            .ref_log_probs = payload_.FindEntryLogProbs(loss_->ref_weights, m.group, m.rollout)});
  }
  return loss_members;
}

LossSums WaveHead::Report(WaveResults& wave) const {
  const at::Tensor results = wave.numbers->Get();
  const MemberRows& last = wave.members.back();
  const int64_t rows = last.head_begin + payload_.shapes[last.group].response_tokens[last.rollout];
  const auto* numbers = results.const_data_ptr<double>();
  for (const MemberRows& m : wave.members) {
    const auto count = static_cast<size_t>(payload_.shapes[m.group].response_tokens[m.rollout]);
    const std::span<const double> log_prob(numbers + m.head_begin, count);
    results_(
        m, log_prob,
        head_.need_entropy ? std::span<const double>(numbers + rows + m.head_begin, count) : std::span<const double>());
  }
  return loss_ == nullptr ? LossSums{} : LossSumsOf(numbers + results.numel() - kNumLossSums);
}

LossSums WaveReports::Add(WaveResults wave) {
  unread_.push_back(std::move(wave));
  return Read(unread_max_);
}

LossSums WaveReports::Read(size_t unread_max) {
  LossSums sums;
  for (; unread_.size() > unread_max; unread_.pop_front()) sums += head_.Report(unread_.front());
  return sums;
}

}  // namespace stemma::worker
