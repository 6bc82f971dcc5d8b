// PassTimes: what each operation of a pass cost, by the device's clock.
//
// Made by the pass runner, engine thread only. A device that runs behind its host is asked for its times once, when the
// pass ends, so that no operation waits for it; on a CPU they are known at once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/engine/pass_sums.h"
#include "worker/engine/step_spans.h"
#include "worker/parallel/mesh_ranks.h"
#include "worker/schedule/program.h"

namespace stemma::worker {

class PassTimes {
 public:
  // spans: null for none. `entry`: of a forward-only pass.
  PassTimes(const Backend& backend, StepSpans* spans, bool entry, const CopyRanks& copy)
      : clock_(backend.make_clock()),
        at_once_(backend.host_reads_are_free),
        spans_(spans),
        entry_(entry),
        copy_(copy) {}

  void Begin() { begin_ = clock_->Mark(); }
  // Waits until the device has done all that it was given.
  void AwaitDevice() { clock_->At(clock_->Mark()); }
  // Ends the operation that began last. `apart_s`: seconds of the host in it that belong to no phase. `held_s`: what
  // held the engine in it, as SpanOf takes it. Both count only where the host's clock is the device's.
  void End(const Operation& operation, double apart_s, double held_s, PassSums& sums);
  // Adds what is not added yet; waits for the device.
  void Settle(PassSums& sums);

 private:
  struct Timed {
    Operation operation;
    int64_t begin, end;  // marks
    double apart_s, held_s;
  };

  const std::unique_ptr<DeviceClock> clock_;
  const bool at_once_;
  StepSpans* const spans_;
  const bool entry_;
  const CopyRanks copy_;
  int64_t begin_ = 0;
  std::vector<Timed> timed_;
};

}  // namespace stemma::worker
