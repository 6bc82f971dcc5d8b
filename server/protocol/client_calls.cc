#include "server/protocol/client_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "common/base/error.h"
#include "server/protocol/answers.h"
#include "server/protocol/checkpoint_rules.h"

namespace stemma::server {

absl::Status ClientCalls::AdmitJob(uint64_t bytes) const {
  return CheckQueue(p_.options.config.limits(), p_.jobs.num_open() + p_.arrivals.size(),
                    p_.jobs.open_bytes() + p_.arrivals.bytes(), bytes);
}

void ClientCalls::Receive(Arrival arrival) {
  p_.arrivals.Add(std::move(arrival), {p_.gang.config(), p_.calibration.rates()});
  membership_->AcceptArrivals();
}

void ClientCalls::OnPlanned(const PlannedEvent& event) {
  p_.arrivals.OnPlanned(event, p_.lineage.name());
  membership_->AcceptArrivals();
}

void ClientCalls::OnSubmit(const SubmitEvent& event) {
  const TrainingRequest& request = *event.request;
  const bool update = request.kind == TrainingRequest::Kind::kUpdate;
  const bool validate_only = request.header().validate_only();
  if (!request.refused.ok() && request.digest.empty()) return p_.out.Reply(event.call, RefusedUnread(request));
  if (update && !validate_only && (AnswerRepeat(event) || JoinArrival(event))) return;
  if (!request.refused.ok()) return p_.out.Reply(event.call, request.refused);
  // First, because a lineage that is gone never comes back, and a server that is not serving may.
  const uint64_t step = p_.jobs.StepAfterOpen() + p_.arrivals.num_steps();
  absl::Status admitted = p_.lineage.CheckExpected(request.header(), step);
  if (admitted.ok()) admitted = membership_->NotServing();
  if (admitted.ok()) admitted = CheckReadable(p_.history.state(), CheckpointsReadBy(request));
  if (admitted.ok()) admitted = AdmitJob(request.bytes);
  if (!admitted.ok()) return p_.out.Reply(event.call, admitted);
  Arrival arrival;
  arrival.request = event.request;
  arrival.senders.push_back({.call = event.call, .wait = WaitOf(request.header())});
  Receive(std::move(arrival));
}

absl::Status ClientCalls::RefusedUnread(const TrainingRequest& request) const {
  const std::string& id = request.header().request_id();
  if (request.header().validate_only()) return request.refused;
  if (p_.jobs.table().IsExpired(id)) return UnknownRequestError(p_.jobs.table(), id);
  const bool known = p_.jobs.table().Find(id) != nullptr || p_.arrivals.Find(id) != nullptr;
  return known ? RefusedButKnownError(request.refused, id) : request.refused;
}

bool ClientCalls::AnswerRepeat(const SubmitEvent& event) {
  const v1::RequestHeader& header = event.request->header();
  const std::string& id = header.request_id();
  const RequestTable& table = p_.jobs.table();
  UpdateRecord* record = p_.jobs.table().Find(id);
  if (record == nullptr) {
    if (table.IsExpired(id)) p_.out.Reply(event.call, UnknownRequestError(table, id));
    return table.IsExpired(id);
  }
  const bool same = record->digest == event.request->digest;
  if (record->lost_step) {
    if (!same) return false;  // ids are scoped by lineage: new rollouts under the new one
    p_.out.Reply(event.call, p_.lineage.RolledBackError(*record));
    return true;
  }
  if (!same) {
    p_.out.Reply(event.call, RequestIdReusedError(id));
    return true;
  }
  if (header.has_expected_lineage()) {
    if (absl::Status status = p_.lineage.CheckName(header.expected_lineage()); !status.ok()) {
      p_.out.Reply(event.call, status);
      return true;
    }
  }
  if (record->final() && record->resumable) return false;
  p_.out.AddReason(
      absl::StrCat("request ", id, " came again: ", record->final() ? "its outcome is replayed" : "attached"));
  p_.jobs.Wait(*record, {.call = event.call, .deadline = p_.out.now() + WaitOf(header), .replayed = true});
  return true;
}

bool ClientCalls::JoinArrival(const SubmitEvent& event) {
  const v1::RequestHeader& header = event.request->header();
  Arrival* arrival = p_.arrivals.Find(header.request_id());
  if (arrival == nullptr) return false;
  absl::Status lineage;
  if (header.has_expected_lineage()) lineage = p_.lineage.CheckName(header.expected_lineage());
  if (!lineage.ok()) {
    p_.out.Reply(event.call, lineage);
  } else if (arrival->request->digest != event.request->digest) {
    p_.out.Reply(event.call, RequestIdReusedError(header.request_id()));
  } else {
    p_.out.AddReason(absl::StrCat("request ", header.request_id(), " came again while its plan is made: attached"));
    arrival->senders.push_back({.call = event.call, .wait = WaitOf(header), .replayed = true});
  }
  return true;
}

void ClientCalls::OnGetRequest(const GetRequestEvent& event) {
  const absl::Time deadline = p_.out.now() + event.wait.value_or(absl::ZeroDuration());
  const RequestWaiter waiter = {.call = event.call, .deadline = deadline, .failure_is_error = false};
  if (Arrival* arrival = p_.arrivals.Find(event.request_id)) return p_.arrivals.Watch(*arrival, waiter);
  UpdateRecord* record = p_.jobs.table().Find(event.request_id);
  if (record == nullptr) {
    return p_.out.Reply(event.call, UnknownRequestError(p_.jobs.table(), event.request_id));
  }
  p_.jobs.Wait(*record, waiter);
}

void ClientCalls::OnCancel(const CancelEvent& event) {
  if (const Arrival* arrival = p_.arrivals.Find(event.request_id)) return CancelArrival(*arrival, event.call);
  UpdateRecord* record = p_.jobs.table().Find(event.request_id);
  if (record == nullptr) {
    return p_.out.Reply(event.call, UnknownRequestError(p_.jobs.table(), event.request_id));
  }
  p_.jobs.Wait(*record, {.call = event.call, .failure_is_error = false});
  if (record->final()) return;
  const bool runs = p_.jobs.running().Is(record->id);
  if (!runs && !membership_->IsDecided(*record)) return p_.jobs.CancelUpdate(*record);
  // What was decided stays, and no other step follows. Steps that are computed again are computed to their end: the
  // weights would be left in the middle of the request, and nothing begins there.
  if (!runs || p_.jobs.running().committed() || membership_->IsDecided(*record) || record->computes_again()) {
    record->cancel_requested = true;
    return;
  }
  p_.jobs.AbortRunning();
  p_.jobs.CancelUpdate(*record);
}

// The request is accepted, without a plan, for its record's sake.
void ClientCalls::CancelArrival(const Arrival& arrival, CallId call) {
  UpdateRecord& record = p_.jobs.AcceptUpdate(p_.arrivals.Remove(arrival), {});
  p_.jobs.Wait(record, {.call = call, .failure_is_error = false});
  p_.jobs.CancelUpdate(record);
  membership_->AcceptArrivals();
}

absl::Status ClientCalls::ResultsProblem(const ReadResultsEvent& event) {
  const UpdateRecord* record = p_.jobs.table().Find(event.request_id);
  const bool planning = p_.arrivals.Find(event.request_id) != nullptr;
  if (record == nullptr && !planning) return UnknownRequestError(p_.jobs.table(), event.request_id);
  if (planning || !record->final()) {
    return MakeError(Reason::kRequestOpen,
                     absl::StrCat("request ", event.request_id, " is not finished; wait with GetRequest"));
  }
  if (absl::Status failure = p_.jobs.FailureOf(*record); !failure.ok()) return failure;
  if (record->results_dropped) {
    return MakeError(Reason::kRequestIdExpired,
                     absl::StrCat("the log-probs of request ", record->id, " are no longer kept"));
  }
  if (record->status.has_result() && !record->status.result().effective().return_log_probs()) {
    return MakeError(Reason::kUnsupported, absl::StrCat("request ", record->id, " was sent without return_log_probs"));
  }
  return absl::OkStatus();
}

void ClientCalls::OnReadResults(const ReadResultsEvent& event) {
  const absl::Status problem = ResultsProblem(event);
  if (problem.ok()) {
    for (const auto& chunk : p_.jobs.table().Find(event.request_id)->results) {
      p_.out.Add(ChunkAction{event.call, chunk});
    }
  }
  p_.out.Reply(event.call, problem);
}

void ClientCalls::OnExport(const ExportEvent& event) {
  const v1::ExportWeightsRequest& request = event.request;
  absl::Status admitted = CheckExport(request);
  if (admitted.ok() && request.has_expected_lineage()) admitted = p_.lineage.CheckName(request.expected_lineage());
  if (admitted.ok()) admitted = membership_->NotServing();
  if (admitted.ok() && (p_.arrivals.HasExport(request.name()) || p_.jobs.queue().HasExport(request.name()))) {
    admitted = ExportExistsError(ExportPath(p_.options.data_directory, request.name()), {{"pending", "true"}});
  }
  if (admitted.ok()) admitted = AdmitJob(0);
  if (!admitted.ok()) return p_.out.Reply(event.call, admitted);
  Arrival arrival;
  arrival.work = ExportJob{request, event.name_is_free};
  arrival.senders.push_back({.call = event.call});
  Receive(std::move(arrival));
}

// What is being written under the name is another export, which has its name when it is whole.
void ClientCalls::OnDeleteExport(const DeleteExportEvent& event) {
  if (const absl::Status named = CheckNameField(event.name); !named.ok()) return p_.out.Reply(event.call, named);
  p_.out.Add(RemoveExportAction{.call = event.call, .name = event.name});
}

void ClientCalls::OnExportRemoved(const ExportRemovedEvent& event) {
  if (absl::IsNotFound(event.removed)) {
    return p_.out.Reply(event.call, MakeError(Reason::kNotFound, absl::StrCat("there is no export ", event.name)));
  }
  if (!event.removed.ok()) {
    p_.out.AddWarning(absl::StrCat("export ", event.name, " may stay on the disk: ", event.removed.message()));
    return p_.out.Reply(event.call, event.removed);
  }
  p_.out.AddReason(absl::StrCat("export ", event.name, " is removed"));
  p_.out.Reply(event.call, v1::DeleteExportResponse());
}

void ClientCalls::OnGone(const CallGoneEvent& event) {
  p_.arrivals.Leave(event.call);
  membership_->AcceptArrivals();
  p_.jobs.Leave(event.call);
}

void ClientCalls::OnListRequests(const ListRequestsEvent& event) { p_.out.Reply(event.call, p_.jobs.List()); }

void ClientCalls::OnGetModel(const GetModelEvent& event) {
  p_.out.Reply(event.call, ModelInfoOf(p_, membership_->draining()));
}

void ClientCalls::OnGetServerInfo(const GetServerInfoEvent& event) { p_.out.Reply(event.call, ServerInfoOf(p_)); }

}  // namespace stemma::server
