// Jobs from their arrival to their acceptance, or to their end before it: server/protocol/arrival.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "server/protocol/coordinator_send.h"

namespace stemma::server {

void CoordinatorState::Receive(Arrival arrival) {
  arrivals_.push_back(std::move(arrival));
  if (arrivals_.back().request != nullptr) StartPlan(arrivals_.back());
  AcceptArrivals();
}

void CoordinatorState::StartPlan(Arrival& arrival) {
  arrival.plan.reset();
  arrival.plan_id = next_plan_++;
  decision_.actions.push_back(
      PlanAction{.id = arrival.plan_id, .request = arrival.request, .config = config_, .rates = calibration_.rates()});
}

void CoordinatorState::StopPlan(const Arrival& arrival) {
  if (!arrival.planned()) decision_.actions.push_back(StopPlanAction{arrival.plan_id});
}

// A plan is made for a worker's memory and speed, so the next worker needs another.
void CoordinatorState::RestartPlans() {
  for (Arrival& arrival : arrivals_) {
    if (arrival.request == nullptr) continue;
    StopPlan(arrival);
    StartPlan(arrival);
  }
}

void CoordinatorState::OnEvent(const PlannedEvent& event) {
  const auto arrival = std::find_if(arrivals_.begin(), arrivals_.end(),
                                    [&](const Arrival& a) { return a.request != nullptr && a.plan_id == event.id; });
  if (arrival == arrivals_.end()) return;  // its calls left, or it was planned anew
  arrival->plan = event.plan;
  if (!event.plan->ok()) {
    EndArrival(arrival, event.plan->status());
  } else if (arrival->validate_only()) {
    v1::RequestStatus status;
    status.set_request_id(arrival->request->header().request_id());
    status.set_steps_total((*event.plan)->num_steps());
    status.set_lineage(lineage_);
    *status.mutable_plan() = std::move((*event.plan)->report);
    Reply(arrival->senders.at(0).call, std::move(status));
    arrivals_.erase(arrival);
  }
  AcceptArrivals();
}

// Accepts what has its plan, up to the first that has none. Without a worker everything waits for the next one's plan.
void CoordinatorState::AcceptArrivals() {
  for (auto next = arrivals_.begin(); next != arrivals_.end() && worker_ && worker_->ready;) {
    const auto arrival = next++;
    if (arrival->validate_only()) continue;
    if (!arrival->planned()) return;
    absl::Status expected;
    if (arrival->request != nullptr) expected = CheckExpected(arrival->request->header(), StepAfterAccepted());
    if (expected.ok()) {
      Accept(*arrival);
      arrivals_.erase(arrival);
    } else {  // a job before it was refused by its plan
      EndArrival(arrival, expected);
    }
  }
}

void CoordinatorState::Accept(Arrival& arrival) {
  if (arrival.is_update()) {
    AcceptUpdate(arrival, std::move(**arrival.plan));
    return;
  }
  const CallId call = arrival.senders.empty() ? 0 : arrival.senders[0].call;
  if (arrival.request == nullptr) {
    const std::string id = absl::StrCat("~export/", next_call_job_++);
    call_jobs_[id] =
        CallJob{.call = call, .request = nullptr, .plan = {}, .export_request = std::move(arrival.export_request)};
    queue_.push_back(id);
    return;
  }
  const std::string id = absl::StrCat("~log-prob/", next_call_job_++);
  Say(absl::StrCat("log-prob pass ", id, " accepted: ", arrival.request->groups.size(), " groups, ",
                   arrival.request->num_rollouts, " rollouts"));
  call_job_bytes_ += arrival.request->bytes;
  call_jobs_[id] =
      CallJob{.call = call, .request = arrival.request, .plan = std::move(**arrival.plan), .export_request = {}};
  queue_.push_back(id);
}

Arrival* CoordinatorState::FindArrival(const std::string& request_id) {
  for (Arrival& arrival : arrivals_) {
    if (arrival.is_update() && arrival.request->header().request_id() == request_id) return &arrival;
  }
  return nullptr;
}

// True: the same id is being planned, and the call is answered, or waits.
bool CoordinatorState::JoinArrival(const SubmitEvent& event) {
  const std::string& id = event.request->header().request_id();
  Arrival* arrival = FindArrival(id);
  if (arrival == nullptr) return false;
  const v1::RequestHeader& header = event.request->header();
  absl::Status lineage;
  if (header.has_expected_lineage()) lineage = CheckLineage(header.expected_lineage());
  if (!lineage.ok()) {
    Reply(event.call, lineage);
  } else if (arrival->request->digest != event.request->digest) {
    Reply(event.call,
          MakeError(Reason::kRequestIdReused, absl::StrCat("request ", id, " was sent before with another payload")));
  } else {
    Say(absl::StrCat("request ", id, " came again while its plan is made: attached"));
    arrival->senders.push_back({.call = event.call, .replayed = true});
  }
  return true;
}

void CoordinatorState::Watch(Arrival& arrival, const RequestWaiter& watcher) {
  if (watcher.deadline <= now_) {
    return Reply(watcher.call,
                 MakeError(Reason::kNotFound, absl::StrCat("request ", arrival.request->header().request_id(),
                                                           " is not accepted yet: its plan is being made")));
  }
  arrival.watchers.push_back(watcher);
}

// Nothing of it was accepted: every call that waits is told `status`, and the id is free.
void CoordinatorState::EndArrival(std::list<Arrival>::iterator arrival, const absl::Status& status) {
  StopPlan(*arrival);
  Arrival ended = std::move(*arrival);
  arrivals_.erase(arrival);
  for (const Arrival::Sender& sender : ended.senders) Reply(sender.call, status);
  for (const RequestWaiter& watcher : ended.watchers) Reply(watcher.call, status);
}

void CoordinatorState::EndArrivals(const absl::Status& status) {
  for (std::list<Arrival> ended = std::exchange(arrivals_, {}); !ended.empty(); ended.pop_front()) {
    StopPlan(ended.front());
    for (const Arrival::Sender& sender : ended.front().senders) Reply(sender.call, status);
    for (const RequestWaiter& watcher : ended.front().watchers) Reply(watcher.call, status);
  }
}

// Cancelling is remembered, so that a repeat that is on its way does not run: the request is accepted, without a plan,
// for its record's sake.
void CoordinatorState::CancelArrival(Arrival& arrival, CallId call) {
  StopPlan(arrival);
  UpdateRecord& record = AcceptUpdate(arrival, {});
  arrivals_.remove_if([&](const Arrival& a) { return &a == &arrival; });
  Wait(record, {.call = call, .failure_is_error = false});
  CancelUpdate(record);
  AcceptArrivals();
}

// A plan that no call waits for any more is not made. An export goes on: its files may be wanted.
void CoordinatorState::LeaveArrivals(CallId call) {
  for (auto arrival = arrivals_.begin(); arrival != arrivals_.end(); ++arrival) {
    std::erase_if(arrival->watchers, [&](const RequestWaiter& watcher) { return watcher.call == call; });
    if (std::erase_if(arrival->senders, [&](const Arrival::Sender& sender) { return sender.call == call; }) == 0)
      continue;
    if (!arrival->senders.empty() || arrival->request == nullptr) return;
    EndArrival(arrival,
               MakeError(Reason::kNotFound, "the client left before the request was accepted; nothing happened"));
    return AcceptArrivals();
  }
}

void CoordinatorState::AnswerDueWatchers() {
  for (Arrival& arrival : arrivals_) {
    std::vector<RequestWaiter> watchers = std::exchange(arrival.watchers, {});
    for (const RequestWaiter& watcher : watchers) Watch(arrival, watcher);
  }
}

}  // namespace stemma::server
