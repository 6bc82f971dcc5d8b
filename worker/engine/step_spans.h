// StepSpans: what a rank does in one step, and when, for the trace that a request may ask for.
//
// Made by ModelEngine for a step whose Prepare asks for spans; where there is none, nothing is recorded and no clock is
// read for it. Pure: times are arguments, in seconds of one monotonic clock.
//
// Thread safety: safe; the engine thread and the one that copies add.
// Invariant: holds, and has given away, at most `spans_max` spans; what came later is counted.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "stemma/v1/step_trace.pb.h"
#include "worker/memory/copy_engine.h"
#include "worker/parallel/collective_record.h"
#include "worker/parallel/mesh_ranks.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

class StepSpans {
 public:
  // `origin_s`: when PREPARE began, from which spans count.
  StepSpans(double origin_s, uint32_t spans_max) : origin_s_(origin_s), spans_max_(spans_max) {}

  // Adds one that lasted from `begin_s` to `end_s`. The ends of spans are rounded to nanoseconds, not their durations:
  // one that begins where another ended still does.
  void Add(v1::StepSpan span, double begin_s, double end_s);
  void Add(v1::StepSpan::Kind kind, double begin_s, double end_s);
  void Add(const CollectiveRecord& collective);
  void Add(const CopyTimes& copy);
  // Adds the agreement, whose end all ranks share.
  void AddAgreement(double begin_s, double end_s);
  // Returns those added since the last call, by their start.
  v1::SpanList Take();

 private:
  uint64_t Nanoseconds(double seconds) const;

  const double origin_s_;
  const uint32_t spans_max_;
  Mutex mutex_;
  v1::SpanList list_ ABSL_GUARDED_BY(mutex_);
  uint32_t kept_ ABSL_GUARDED_BY(mutex_) = 0;  // in list_ and in those that were taken
};

// Returns the span of an operation of a step's program, or of one of the pass before the step. `held_s`: what held the
// engine in it and is no part of its phase. `copy`: that the rank is of; an exchange names the other copy, a span the
// rank of the mesh.
v1::StepSpan SpanOf(const Operation& operation, bool entry, double held_s = 0, const CopyRanks& copy = {});

// Adds a span from its construction to its destruction; does nothing where `spans` is null.
class TimedSpan {
 public:
  TimedSpan(StepSpans* spans, v1::StepSpan::Kind kind);
  ~TimedSpan();
  TimedSpan(const TimedSpan&) = delete;
  TimedSpan& operator=(const TimedSpan&) = delete;

 private:
  StepSpans* const spans_;
  const v1::StepSpan::Kind kind_;
  const double begin_s_;
};

}  // namespace stemma::worker
