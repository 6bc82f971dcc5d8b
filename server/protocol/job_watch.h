// When a worker that still speaks is given up: its heartbeats come from a thread of their own, so an engine that hangs
// is seen by its progress alone. Pure.
//
// A job stands still while its worker's counter does not change; the counter moves with every message that the engine
// takes and every wave. It is lost after kWatchMultiple times the seconds that the plan predicts for its longest piece,
// or after the floor (--worker-stalled-after), whichever is more. The floor is for what no plan predicts: page faults
// and cold caches of the first step, a machine that others use too. What has no counter of its own, APPLY and an
// export, is one piece. A job that moves for ever is lost as well: after kWatchMultiple times the predicted seconds of
// all of it, or kFloorsOfJob floors.
//
// Only time in which the server itself was awake and listened counts (CountedTime): a server that was stopped, alone or
// with its whole machine, or that hung, judges nobody by that time, and a clock that is set loses no worker.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/base/dtype_names.h"
#include "common/model/model_config.h"
#include "server/protocol/request_plan.h"

namespace stemma::server {

inline constexpr double kWatchMultiple = 20;
inline constexpr int kFloorsOfJob = 12;
inline constexpr absl::Duration kLookEvery = absl::Seconds(1);   // a heartbeat's time
inline constexpr absl::Duration kCountedMax = absl::Seconds(2);  // of the time between two looks
inline constexpr double kBytesPerSecond = 100e6;                 // predicted of disks and networks

// The time since the last event that counts as a worker's silence: the shorter of the time between their arrivals and
// the time between their handling, and at most kCountedMax. Where the server hung, events that arrived one by one are
// handled in one moment; where the server is slow, events that arrived in one moment are handled one by one. In either
// case a worker's message may still wait in the queue, so that time says nothing about the worker.
class CountedTime {
 public:
  // `now`: when the event came. `handled_at`: when it is handled, where that is later.
  absl::Duration Until(absl::Time now, absl::Time handled_at = absl::InfinitePast());

 private:
  absl::Time last_ = absl::InfinitePast(), last_handled_ = absl::InfinitePast();
};

// Predicted seconds of one job, or of one half of a step.
struct JobSeconds {
  double longest = 0;  // of what moves the counter once
  double total = 0;
};
// Step k with its payload of so many bytes, and with the entry pass where k = 0.
JobSeconds PrepareSeconds(const RequestPlan& plan, uint32_t k, uint64_t payload_bytes);
JobSeconds ApplySeconds(const RequestPlan& plan, uint32_t k);
JobSeconds LogProbSeconds(const RequestPlan& plan, uint64_t payload_bytes);
// Both runs of a verification.
JobSeconds VerifySeconds(const RequestPlan& plan, uint64_t payload_bytes);
// Writing the model's weights, in the largest dtype; staging or writing masters and moments; loading it, and making its
// gradients and optimizer states.
JobSeconds ExportSeconds(const ModelConfig& model);
JobSeconds SaveSeconds(const ModelConfig& model);
JobSeconds LoadSeconds(const ModelConfig& model, RunDtype dtype);

class JobWatch {
 public:
  JobWatch(std::string what, const JobSeconds& predicted, absl::Duration floor);

  void Pass(absl::Duration counted);
  // Takes what the worker's counter says now, in a heartbeat of that phase.
  void Heard(uint64_t counter, const std::string& phase);
  void Moved() { still_ = absl::ZeroDuration(); }
  const std::string& what() const { return what_; }
  // "", or why the worker is given up: what stood still, where and for how long, and the limit.
  std::string Problem() const;

 private:
  std::string what_;  // "PREPARE of step 3"
  JobSeconds predicted_;
  absl::Duration still_max_, total_max_;
  absl::Duration still_, total_;
  uint64_t counter_ = 0;
  std::string phase_;
};

}  // namespace stemma::server
