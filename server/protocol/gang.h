// The workers that hold one copy of the training state together, today one: who it is, whether it has loaded the model,
// and whether it is still there. Pure: told the time and what was heard, it decides; its owner sends and closes.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) at most one worker at a time; a session is one worker's, from its Register to its loss.
//  (2) the generation grows with every worker that joins: what an earlier one says has other keys.
//  (3) the configuration in force is the one divided for the worker's memory, once a worker is ready.
//  (4) a worker that is silent for lost_after, counted while the server was awake, is lost; so is one that is too slow
//      to load the model (server/protocol/job_watch.h).
//
// Absent -> Join -> loading -> BecomeReady -> ready -> Leave -> absent; loading -> Leave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model_config.h"
#include "server/protocol/events.h"
#include "server/protocol/job_watch.h"

namespace stemma::server {

struct GangOptions {
  uint64_t epoch = 1;
  std::string data_directory;
  v1::RunConfig config;
  ModelConfig model;
  absl::Duration lost_after;
  absl::Duration stalled_after;
  absl::Duration return_within;
};

class Gang {
 public:
  struct Worker {
    SessionId session = 0;
    std::string incarnation;
    std::string device;
    std::string host;
    uint32_t pid = 0;
    bool ready = false;
  };

  explicit Gang(GangOptions options);

  bool present() const { return worker_.has_value(); }
  bool serves() const { return worker_ && worker_->ready; }
  bool ever_served() const { return ever_served_; }
  bool Has(SessionId session) const { return worker_ && worker_->session == session; }
  // REQUIRES: present.
  const Worker& worker() const { return *worker_; }
  uint64_t generation() const { return generation_; }
  const v1::RunConfig& config() const { return config_; }

  // Takes a worker; the weights that it is to load are at `step`. Returns what it is sent. Errors: FailedPrecondition -
  // there is one already; what DivideMemory refuses.
  absl::StatusOr<internal::v1::Configure> Join(absl::Time now, SessionId session, const internal::v1::Register& message,
                                               uint64_t step);
  // Errors: InvalidArgument - it was ready before.
  absl::Status BecomeReady(const internal::v1::Ready& message);
  void Leave(absl::Time now);
  // The step key of this worker and generation, without what names the step.
  internal::v1::StepKey Key() const;

  // Lets the time since the last event pass; returns how much of it counts, zero without a worker.
  absl::Duration Pass(absl::Time now);
  void Heard() { silent_for_ = absl::ZeroDuration(); }
  // Begins the next look at the worker where one was due.
  void Look(absl::Time now);
  // "", or why the worker is given up.
  std::string Problem() const;
  // Whether no worker was there, or none that got ready, for return_within.
  bool MissingTooLong(absl::Time now) const { return now >= ReturnDeadline(); }
  absl::Time ReturnDeadline() const { return missing_since_ + options_.return_within; }
  absl::Time NextLook() const { return next_look_; }

 private:
  const GangOptions options_;
  v1::RunConfig config_;
  std::optional<Worker> worker_;
  v1::RunConfig divided_;            // for the worker's memory
  std::optional<JobWatch> loading_;  // until it is ready
  absl::Duration silent_for_;        // counted
  bool ever_served_ = false;
  CountedTime counted_;
  absl::Time next_look_ = absl::InfiniteFuture();  // infinite without a worker
  absl::Time missing_since_ = absl::InfiniteFuture();
  uint64_t generation_ = 0;
};

}  // namespace stemma::server
