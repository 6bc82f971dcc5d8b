#include "worker/engine/live_wave.h"

#include <optional>
#include <utility>
#include <vector>

#include "worker/engine/results.h"

namespace stemma::worker {
namespace {

// What the head says of all rows of a wave: of a rollout that ranks share (`cut`), they gather it once.
class GatheredNumbers {
 public:
  explicit GatheredNumbers(const CutRollout* cut) : cut_(cut) {}

  HeadOutput Of(const HeadOutput& own) {
    if (cut_ == nullptr) return own;
    if (!all_) {
      // Entropies that nobody asked for have no place of their own.
      const bool has_entropy = own.entropy_T.defined();
      auto [log_prob_T, entropy_T] = cut_->GatherNumbers(own.log_prob_T, has_entropy ? own.entropy_T : own.log_prob_T);
      all_ = {std::move(log_prob_T), has_entropy ? std::move(entropy_T) : at::Tensor()};
    }
    return *all_;
  }

  // `this` outlives it.
  std::optional<SharedRows> AsSharedRows() {
    if (cut_ == nullptr) return std::nullopt;
    return SharedRows{.is_first = cut_->context().cp_rank() == 0,
                      .own = [this](const at::Tensor& x_T) { return cut_->index().Own(x_T); },
                      .gather = [this](const HeadOutput& own) { return Of(own); }};
  }

 private:
  const CutRollout* const cut_;
  std::optional<HeadOutput> all_;
};

}  // namespace

void WaveHead::Run(at::Tensor hidden_BD, const at::Tensor& targets_B, LiveWave& live) const {
  const Backend& backend = *context_.backend;
  const Parameter& head = context_.weights->at(context_.weights->head);
  const std::vector<RowRange> rollouts = RolloutRows(live);
  const HeadInput input = {hidden_BD, head.weight, targets_B, rollouts};
  context_.parameters->Head(head_use());
  GatheredNumbers numbers(live.input.cut.get());
  if (loss_ == nullptr) {
    StartRead(live, numbers.Of(HeadForward(backend, input, head_)), {});
    return;
  }
  const std::optional<SharedRows> shared = numbers.AsSharedRows();
  WaveLoss loss(*loss_, backend, LossMembers(live.members), shared ? &*shared : nullptr);
  HeadBackwardResult result = HeadForwardBackward(backend, input, head_, loss.gradient(), head.grad);
  live.dhidden_BD = std::move(result.dhidden_TD);
  StartRead(live, numbers.Of(result.output), loss.sums());
}

// Each rank has the numbers of a rollout that they share, and the first tells of them.
void WaveHead::StartRead(LiveWave& live, const HeadOutput& output, const at::Tensor& sums) const {
  std::vector<MemberRows> members = live.members;
  if (live.input.cut != nullptr && context_.cp_rank() > 0) members.clear();
  live.results = {std::move(members), context_.backend->start_read(PackResults(output, sums))};
}

// Returns the rows of each member that this rank has at the head.
std::vector<RowRange> WaveHead::RolloutRows(const LiveWave& live) const {
  if (live.input.cut != nullptr) return {{0, live.input.cut->own_rows()}};
  std::vector<RowRange> rollouts;
  for (const MemberRows& m : live.members) {
    rollouts.push_back({m.head_begin, m.head_begin + payload_.shapes[m.group].response_tokens[m.rollout]});
  }
  return rollouts;
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
  int64_t rows = 0;
  for (const MemberRows& m : wave.members) rows += payload_.shapes[m.group].response_tokens[m.rollout];
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
