#include "server/protocol/arrivals.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "common/base/error.h"
#include "glog/logging.h"

namespace stemma::server {

void Arrivals::Add(Arrival arrival, const PlanInputs& inputs) {
  arrivals_.push_back(std::move(arrival));
  if (arrivals_.back().request != nullptr) StartPlan(arrivals_.back(), inputs);
}

void Arrivals::StartPlan(Arrival& arrival, const PlanInputs& inputs) {
  arrival.plan.reset();
  arrival.plan_id = next_plan_++;
  const bool kept = arrival.is_update() && !spool_prefix_.empty();
  out_->Add(PlanAction{.id = arrival.plan_id,
                       .request = arrival.request,
                       .config = inputs.config,
                       .rates = inputs.rates,
                       .spool_name = kept ? absl::StrCat(spool_prefix_, arrival.plan_id) : "",
                       .writes_rows = arrival.is_update()});
}

void Arrivals::DropSpool(const std::optional<internal::v1::SpoolFile>& spool) {
  if (spool) out_->Add(RemoveSpoolAction{spool->name()});
}

void Arrivals::StopPlan(const Arrival& arrival) {
  if (!arrival.planned()) out_->Add(StopPlanAction{arrival.plan_id});
}

void Arrivals::Restart(const PlanInputs& inputs) {
  for (Arrival& arrival : arrivals_) {
    if (arrival.request == nullptr) continue;
    StopPlan(arrival);
    DropSpool(std::exchange(arrival.spool, std::nullopt));
    StartPlan(arrival, inputs);
  }
}

void Arrivals::OnPlanned(const PlannedEvent& event, const std::string& lineage) {
  const auto arrival = std::find_if(arrivals_.begin(), arrivals_.end(),
                                    [&](const Arrival& a) { return a.request != nullptr && a.plan_id == event.id; });
  if (arrival == arrivals_.end()) return DropSpool(event.spool);  // its calls left, or it was planned anew
  arrival->plan = event.plan;
  arrival->spool = event.spool;
  if (!event.plan->ok()) return End(*arrival, event.plan->status());
  if (!arrival->validate_only()) return;
  v1::RequestStatus status;
  status.set_request_id(arrival->request->header().request_id());
  status.set_steps_total((*event.plan)->num_steps());
  status.set_lineage(lineage);
  *status.mutable_plan() = std::move((*event.plan)->report);
  out_->Reply(arrival->senders.at(0).call, std::move(status));
  arrivals_.erase(arrival);
}

std::optional<Arrival> Arrivals::TakeNext() {
  const auto next =
      std::find_if(arrivals_.begin(), arrivals_.end(), [](const Arrival& a) { return !a.validate_only(); });
  if (next == arrivals_.end() || !next->planned()) return std::nullopt;
  return TakeOut(next);
}

Arrival Arrivals::TakeOut(std::list<Arrival>::iterator arrival) {
  Arrival taken = std::move(*arrival);
  arrivals_.erase(arrival);
  if (taken.is_update()) taken.watchers = watchers_.Take(taken.request->header().request_id());
  return taken;
}

Arrival* Arrivals::Find(const std::string& request_id) {
  for (Arrival& arrival : arrivals_) {
    if (arrival.is_update() && arrival.request->header().request_id() == request_id) return &arrival;
  }
  return nullptr;
}

Arrival Arrivals::Remove(const Arrival& arrival) {
  const auto it = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) { return &a == &arrival; });
  CHECK(it != arrivals_.end());
  StopPlan(*it);
  return TakeOut(it);
}

void Arrivals::Watch(Arrival& arrival, const RequestWaiter& watcher) {
  if (watcher.deadline <= out_->now()) {
    return out_->Reply(watcher.call,
                       MakeError(Reason::kNotFound, absl::StrCat("request ", arrival.request->header().request_id(),
                                                                 " is not accepted yet: its plan is being made")));
  }
  watchers_.Add(arrival.request->header().request_id(), watcher);
}

void Arrivals::AnswerDueWatchers() {
  for (const RequestWaiters::Due& due : watchers_.TakeDue(out_->now())) {
    Arrival* arrival = Find(due.request_id);
    CHECK(arrival != nullptr) << due.request_id;
    Watch(*arrival, due.waiter);
  }
}

void Arrivals::Leave(CallId call) {
  watchers_.Remove(call);
  for (Arrival& arrival : arrivals_) {
    if (std::erase_if(arrival.senders, [&](const Arrival::Sender& sender) { return sender.call == call; }) == 0)
      continue;
    const bool ends = arrival.request != nullptr || std::holds_alternative<LoadJob>(arrival.work);
    if (!arrival.senders.empty() || !ends) return;
    return End(arrival,
               MakeError(Reason::kNotFound, "the client left before the request was accepted; nothing happened"));
  }
}

void Arrivals::End(const Arrival& arrival, const absl::Status& status) { Refuse(Remove(arrival), status); }

void Arrivals::Refuse(const Arrival& taken, const absl::Status& status) {
  DropSpool(taken.spool);
  for (const Arrival::Sender& sender : taken.senders) out_->Reply(sender.call, status);
  for (const RequestWaiter& watcher : taken.watchers) out_->Reply(watcher.call, status);
}

void Arrivals::EndAll(const absl::Status& status) {
  while (!arrivals_.empty()) End(arrivals_.front(), status);
}

uint64_t Arrivals::bytes() const {
  uint64_t bytes = 0;
  for (const Arrival& arrival : arrivals_) bytes += arrival.bytes();
  return bytes;
}

uint64_t Arrivals::num_steps() const {
  uint64_t steps = 0;
  for (const Arrival& arrival : arrivals_) steps += arrival.is_update() ? arrival.request->num_steps : 0;
  return steps;
}

bool Arrivals::HasExport(const std::string& name) const {
  return std::any_of(arrivals_.begin(), arrivals_.end(),
                     [&](const Arrival& a) { return a.request == nullptr && Writes<ExportJob>(a.work, name); });
}

bool Arrivals::HasSave(const std::string& name) const {
  return std::any_of(arrivals_.begin(), arrivals_.end(),
                     [&](const Arrival& a) { return a.request == nullptr && Writes<SaveJob>(a.work, name); });
}

bool Arrivals::ReadsCheckpoint(const std::string& name) const {
  return std::any_of(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) {
    const auto* load = std::get_if<LoadJob>(&a.work);
    if (a.request == nullptr) return load != nullptr && load->name == name;
    const std::vector<std::string> read = CheckpointsReadBy(*a.request);
    return std::find(read.begin(), read.end(), name) != read.end();
  });
}

}  // namespace stemma::server
