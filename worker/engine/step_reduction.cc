#include "worker/engine/step_reduction.h"

#include "common/base/clock.h"

namespace stemma::worker {

StepReduction::StepReduction(ShardExchange* exchange, PartialGradients& partial, const Weights& weights,
                             const Communicator& data)
    : exchange_(exchange),
      partial_(partial),
      weights_(weights),
      data_(data),
      bytes_before_(data.stats().BytesOf(kGradientsName)) {
  partial_.Begin();
}

void StepReduction::OnFinal(int64_t layer) {
  const double now_s = RealClock().MonotonicSeconds();
  const int first = weights_.layers[static_cast<size_t>(layer)].first();
  partial_status_.Update(partial_.Sum(first));
  exchange_->GradientsAreFinal(first);
  if (begin_s_ == 0 && exchange_->rounds_started() > 0) begin_s_ = now_s;
}

void StepReduction::PassHasEnded() noexcept {
  pass_end_s_ = RealClock().MonotonicSeconds();
  partial_status_.Update(partial_.Sum(/*first=*/0));
  if (exchange_ != nullptr) exchange_->AllGradientsAreFinal();
}

absl::Status StepReduction::Finish() noexcept {
  absl::Status status = exchange_ == nullptr ? absl::OkStatus() : exchange_->FinishReduction();
  status.Update(partial_status_);
  end_s_ = RealClock().MonotonicSeconds();
  return status;
}

void StepReduction::Describe(internal::v1::StepSums& sums, StepSpans* spans) const {
  if (data_.size() == 1) return;
  if (spans != nullptr) spans->Add(v1::StepSpan::REDUCE, pass_end_s_, end_s_);
  sums.set_reduce_s(end_s_ - pass_end_s_);
  if (begin_s_ > 0) sums.set_reduce_overlapped_s(pass_end_s_ - begin_s_);
  sums.set_reduce_bytes(static_cast<uint64_t>(data_.stats().BytesOf(kGradientsName) - bytes_before_));
}

}  // namespace stemma::worker
