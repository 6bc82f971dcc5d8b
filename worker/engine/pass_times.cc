#include "worker/engine/pass_times.h"

namespace stemma::worker {

void PassTimes::End(const Operation& operation, double apart_s, double held_s, PassSums& sums) {
  // On a device behind its host neither is a part of what lies between the device's marks: the host waits for the
  // device there, too, for as long as all that it queued before takes.
  if (!at_once_) apart_s = held_s = 0;
  timed_.push_back({operation, begin_, clock_->Mark(), apart_s, held_s});
  if (at_once_) Settle(sums);
}

void PassTimes::Settle(PassSums& sums) {
  for (const Timed& timed : timed_) {
    const double begin_s = clock_->At(timed.begin), end_s = clock_->At(timed.end);
    sums.AddSeconds(timed.operation.kind, end_s - begin_s - timed.apart_s);
    if (spans_ != nullptr) spans_->Add(SpanOf(timed.operation, entry_, timed.held_s, copy_), begin_s, end_s);
  }
  timed_.clear();
  clock_->Clear();
}

}  // namespace stemma::worker
