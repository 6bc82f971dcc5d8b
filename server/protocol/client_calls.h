// Clients' calls: which are admitted, repeats of what was sent before, waiting, cancelling, and reading results.
//
// Thread safety: none; owned by CoordinatorState, one function per kind of call. Each call is answered exactly once: at
// once, when its job ends, or at the deadline it gave. Errors of requests: docs/errors.md.
#pragma once

#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"

namespace stemma::server {

class ClientCalls {
 public:
  // `membership` outlives it.
  ClientCalls(const CoordinatorParts& parts, Membership* membership) : p_(parts), membership_(membership) {}

  void OnSubmit(const SubmitEvent& event);
  void OnExport(const ExportEvent& event);
  void OnDeleteExport(const DeleteExportEvent& event);
  void OnExportRemoved(const ExportRemovedEvent& event);
  void OnGetRequest(const GetRequestEvent& event);
  void OnCancel(const CancelEvent& event);
  void OnReadResults(const ReadResultsEvent& event);
  void OnListRequests(const ListRequestsEvent& event);
  void OnGetModel(const GetModelEvent& event);
  void OnGetServerInfo(const GetServerInfoEvent& event);
  void OnGone(const CallGoneEvent& event);
  void OnPlanned(const PlannedEvent& event);

 private:
  // Returns why a request is refused that was not read to its end, so that nobody can tell whether it is a repeat.
  absl::Status RefusedUnread(const TrainingRequest& request) const;
  // True: the id was seen before and the call is answered, or waits.
  bool AnswerRepeat(const SubmitEvent& event);
  // True: the same id is being planned, and the call is answered, or waits.
  bool JoinArrival(const SubmitEvent& event);
  absl::Status AdmitJob(uint64_t bytes) const;
  void Receive(Arrival arrival);
  // Cancelling is remembered, so that a repeat that is on its way does not run.
  void CancelArrival(const Arrival& arrival, CallId call);
  // Why the results of this request cannot be read; OK: they can.
  absl::Status ResultsProblem(const ReadResultsEvent& event);

  const CoordinatorParts p_;
  Membership* const membership_;
};

}  // namespace stemma::server
