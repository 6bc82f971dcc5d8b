#include "worker/engine/step_spans.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "glog/logging.h"

namespace stemma::worker {
namespace {

using v1::StepSpan;

StepSpan::Kind KindOf(const Operation& operation) {
  const bool kv = operation.part == PrefixPart::kKv;
  switch (operation.kind) {
    case OperationKind::kPrefixForward:
      return StepSpan::PREFIX_FORWARD;
    case OperationKind::kWaveForward:
      return StepSpan::WAVE_FORWARD;
    case OperationKind::kWaveBackward:
      return StepSpan::WAVE_BACKWARD;
    case OperationKind::kPrefixBackward:
      return StepSpan::PREFIX_BACKWARD;
    case OperationKind::kJoinForward:
    case OperationKind::kJoinPrefixForward:
      return StepSpan::JOIN_FORWARD;
    case OperationKind::kJoinBackward:
    case OperationKind::kJoinPrefixBackward:
      return StepSpan::JOIN_BACKWARD;
    case OperationKind::kSend:
      return kv ? StepSpan::SEND_KV : StepSpan::SEND_GRADIENTS;
    case OperationKind::kReceive:
      return kv ? StepSpan::RECEIVE_KV : StepSpan::RECEIVE_GRADIENTS;
    default:
      LOG(FATAL) << "no plan makes this: " << OperationText(operation);
  }
}

}  // namespace

uint64_t StepSpans::Nanoseconds(double seconds) const {
  return static_cast<uint64_t>(std::llround(std::max(0.0, seconds - origin_s_) * 1e9));
}

void StepSpans::Add(StepSpan span, double begin_s, double end_s) {
  span.set_start_ns(Nanoseconds(begin_s));
  span.set_duration_ns(Nanoseconds(end_s) - span.start_ns());
  MutexLock lock(&mutex_);
  if (kept_ == spans_max_) {
    list_.set_dropped(list_.dropped() + 1);
    return;
  }
  ++kept_;
  *list_.add_spans() = std::move(span);
}

void StepSpans::Add(StepSpan::Kind kind, double begin_s, double end_s) {
  StepSpan span;
  span.set_kind(kind);
  Add(std::move(span), begin_s, end_s);
}

void StepSpans::Add(const CollectiveRecord& collective) {
  StepSpan span;
  span.set_kind(StepSpan::COLLECTIVE);
  span.set_collective(std::string(KindName(collective.kind)));
  span.set_name(std::string(collective.name));
  span.set_axis(std::string(collective.axis));
  if (collective.peer >= 0) span.set_peer(static_cast<uint32_t>(collective.peer));
  span.set_bytes(static_cast<uint64_t>(collective.bytes));
  span.set_held_ns(Nanoseconds(collective.ended_s) - Nanoseconds(collective.awaited_s));
  Add(std::move(span), collective.started_s, collective.ended_s);
}

void StepSpans::Add(const CopyTimes& copy) {
  StepSpan span;
  span.set_kind(copy.kind == CopyTimes::Kind::kOut  ? StepSpan::COPY_OUT
                : copy.kind == CopyTimes::Kind::kIn ? StepSpan::COPY_IN
                                                    : StepSpan::COPY_WAIT);
  span.set_bytes(static_cast<uint64_t>(copy.bytes));
  Add(std::move(span), copy.begun_s, copy.ended_s);
}

void StepSpans::AddAgreement(double begin_s, double end_s) {
  Add(StepSpan::AGREE, begin_s, end_s);
  MutexLock lock(&mutex_);
  list_.set_agreed_ns(Nanoseconds(end_s));
}

v1::SpanList StepSpans::Take() {
  v1::SpanList list;
  {
    MutexLock lock(&mutex_);
    list.Swap(&list_);
  }
  std::stable_sort(list.mutable_spans()->begin(), list.mutable_spans()->end(),
                   [](const StepSpan& a, const StepSpan& b) { return a.start_ns() < b.start_ns(); });
  return list;
}

StepSpan SpanOf(const Operation& operation, bool entry, double held_s, const CopyRanks& copy) {
  StepSpan span;
  span.set_kind(KindOf(operation));
  span.set_cluster(static_cast<uint32_t>(operation.cluster));
  span.set_wave(static_cast<uint32_t>(operation.wave));
  span.set_entry(entry);
  span.set_held_ns(static_cast<uint64_t>(std::llround(held_s * 1e9)));
  if (operation.part == PrefixPart::kNone) return span;
  span.set_peer(static_cast<uint32_t>(copy.MeshRankInCopy(operation.peer_copy)));
  return span;
}

TimedSpan::TimedSpan(StepSpans* spans, StepSpan::Kind kind)
    : spans_(spans), kind_(kind), begin_s_(spans == nullptr ? 0 : RealClock().MonotonicSeconds()) {}

TimedSpan::~TimedSpan() {
  if (spans_ != nullptr) spans_->Add(kind_, begin_s_, RealClock().MonotonicSeconds());
}

}  // namespace stemma::worker
