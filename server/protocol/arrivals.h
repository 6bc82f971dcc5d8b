// The jobs that came and are not accepted yet, because their plans are being made: who waits for each, and which of
// them may be accepted next.
//
// Jobs are accepted in the order in which they came, whatever the order in which their plans are made: an export, or
// what else needs none, stands in the same line. validate_only is answered as soon as its plan is there.
// Thread safety: none; owned by CoordinatorState, whose Outbox it asks for plans and answers calls through.
// Invariants:
//  (1) every arrival with groups has a plan, or one is being made for it: for the worker that is there, or will be.
//  (2) a plan that nobody waits for any more is stopped, and what was spooled with it is removed.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/protocol/events.h"
#include "server/protocol/job_queue.h"
#include "server/protocol/outbox.h"
#include "server/protocol/request_waiters.h"

namespace stemma::server {

struct Arrival {
  // A call that sent the request; the same request may be sent again while it is being planned.
  struct Sender {
    CallId call = 0;
    absl::Duration wait = absl::InfiniteDuration();  // for its end, from its acceptance on
    bool replayed = false;
  };

  PlanId plan_id = 0;                              // 0: plain work
  std::shared_ptr<const TrainingRequest> request;  // null: plain work
  PlainWork work;                                  // where there is no request
  std::vector<Sender> senders;
  std::vector<RequestWaiter> watchers;                // GetRequest; set when it is taken out
  std::shared_ptr<absl::StatusOr<RequestPlan>> plan;  // null: not made yet
  std::optional<internal::v1::SpoolFile> spool;       // that holds it with its plan

  bool validate_only() const { return request != nullptr && request->header().validate_only(); }
  bool is_update() const {
    return request != nullptr && request->kind == TrainingRequest::Kind::kUpdate && !validate_only();
  }
  bool planned() const { return plan_id == 0 || plan != nullptr; }
  uint64_t bytes() const { return request == nullptr ? 0 : request->bytes; }
};

// What plans are made with.
struct PlanInputs {
  const v1::RunConfig& config;
  const Rates& rates;
};

class Arrivals {
 public:
  // `spool_prefix`: of the names under which updates are kept with their plans, never used before; empty: they are not.
  // `out` outlives it.
  explicit Arrivals(Outbox* out, std::string spool_prefix = "") : out_(out), spool_prefix_(std::move(spool_prefix)) {}

  void Add(Arrival arrival, const PlanInputs& inputs);
  // Makes every plan again: one is made for a worker's memory and speed, so the next worker needs another.
  void Restart(const PlanInputs& inputs);
  // Takes the plan that was made, or fails the arrival that it was made for. validate_only is answered, as of
  // `lineage`.
  void OnPlanned(const PlannedEvent& event, const std::string& lineage);
  // Takes out the first arrival, unless its plan is not there yet. What only asks for its plan is passed over.
  std::optional<Arrival> TakeNext();

  // The update of this id; null: none is being planned.
  Arrival* Find(const std::string& request_id);
  // Takes an update out, unanswered; its plan is stopped.
  Arrival Remove(const Arrival& arrival);
  // Lets the call wait for the arrival's acceptance, or answers it where its deadline has come.
  void Watch(Arrival& arrival, const RequestWaiter& watcher);
  void AnswerDueWatchers();
  // Forgets a call that left. A plan that no call waits for any more is not made; plain work goes on: its files may be
  // wanted.
  void Leave(CallId call);
  // Nothing of an arrival was accepted: every call that waits is told `status`, and the id is free.
  void End(const Arrival& arrival, const absl::Status& status);
  // Tells it to every call that waits for an arrival that was taken out.
  void Refuse(const Arrival& taken, const absl::Status& status);
  void EndAll(const absl::Status& status);

  bool empty() const { return arrivals_.empty(); }
  size_t size() const { return arrivals_.size(); }
  uint64_t bytes() const;
  uint64_t num_steps() const;  // of the updates
  bool HasExport(const std::string& name) const;
  bool HasSave(const std::string& name) const;
  bool ReadsCheckpoint(const std::string& name) const;  // a request does
  absl::Time NextDeadline() const { return watchers_.NextDeadline(); }

 private:
  void StartPlan(Arrival& arrival, const PlanInputs& inputs);
  void StopPlan(const Arrival& arrival);

  Arrival TakeOut(std::list<Arrival>::iterator arrival);
  void DropSpool(const std::optional<internal::v1::SpoolFile>& spool);

  Outbox* const out_;
  const std::string spool_prefix_;
  std::list<Arrival> arrivals_;  // in the order in which they came
  RequestWaiters watchers_;      // of the updates among them
  PlanId next_plan_ = 1;
};

}  // namespace stemma::server
