// The jobs that were accepted, from then to their answers: how they are kept, waited for, and ended. Every way in which
// a job ends goes through here, so that its calls are answered once, and the worker drops its payload.
//
// Thread safety: none; owned by CoordinatorState. Called by everything that accepts, runs or ends a job.
// Invariants:
//  (1) an update is open until FinishUpdate; a call job until FinishCallJob.
//  (2) jobs run one at a time, in the order in which they were accepted.
//  (3) an open update's lineage is the model's.
//  (4) what clients are told of an update's begin and end is in the journal before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/protocol/arrivals.h"
#include "server/protocol/call_counts.h"
#include "server/protocol/gang.h"
#include "server/protocol/history.h"
#include "server/protocol/job_queue.h"
#include "server/protocol/lineage.h"
#include "server/protocol/outbox.h"
#include "server/protocol/request_table.h"
#include "server/protocol/request_waiters.h"
#include "server/protocol/running_job.h"

namespace stemma::server {

class Jobs {
 public:
  // The parts outlive it.
  Jobs(uint64_t requests_kept, absl::Duration stalled_after, Outbox* out, History* history, const Gang* gang,
       const Lineage* lineage)
      : out_(out), history_(history), gang_(gang), lineage_(lineage), table_(requests_kept), running_(stalled_after) {}

  // Takes the requests of earlier servers, which the journal holds: open ones wait in the queue.
  void Restore();

  RequestTable& table() { return table_; }
  JobQueue& queue() { return queue_; }
  RunningJob& running() { return running_; }
  // REQUIRES: an update runs.
  UpdateRecord& RunningUpdate();
  // Holds the ended request whose decided steps are computed again, while that runs. REQUIRES: nothing runs.
  UpdateRecord& HoldAgain(const std::string& id, LoadedRequest loaded);
  bool computes_again() const { return again_.has_value(); }
  // Ends what is computed again, at its end or with its workers. REQUIRES: it runs.
  void EndAgain();

  // Takes an arrival whose plan is there, or that needs none.
  void Accept(Arrival arrival);
  UpdateRecord& AcceptUpdate(const Arrival& arrival, RequestPlan plan);

  // Answers the waiter now where the request is final or its deadline has come, else at either.
  void Wait(UpdateRecord& record, const RequestWaiter& waiter);
  void AnswerDueWaiters();
  v1::RequestStatus StatusOf(const UpdateRecord& record) const {
    return AsOfNow(record, record.status, queue_.PlaceOf(record.id));
  }
  // Lists all records, oldest first. Others wait meanwhile: the cost of one grows with neither its steps nor the queue.
  v1::ListRequestsResponse List();
  // OK while it is open, and when it is DONE.
  absl::Status FailureOf(const UpdateRecord& record) const;

  void FinishUpdate(UpdateRecord& record, v1::RequestState state, const absl::Status& failure);
  // The server ends, or serves nothing any more: open updates are told so, and the journal is not. The next server goes
  // on with them.
  void LeaveAll(const absl::Status& status);
  void LeaveUpdate(UpdateRecord& record, const absl::Status& status) { End(record, v1::FAILED, status); }
  void LeaveWaiting(const absl::Status& status);  // what does not run
  // The calls that wait are told to come again: updates stay open, jobs of calls end.
  void AnswerAllWaiters(const absl::Status& status);
  // Ends it without its own fault. Where steps of it were applied they stay, and the same id cannot run again; else it
  // may be sent again.
  void GiveUpUpdate(UpdateRecord& record, const std::string& why);
  void CancelUpdate(UpdateRecord& record);
  void FinishCallJob(const std::string& id, Reply reply);
  // Ends the job; its call is whose that takes it.
  CallJob ReleaseCallJob(const std::string& id);
  // Tells the ranks to stop what runs; its job is still to be finished. REQUIRES: a gang, and nothing committed.
  void AbortRunning();
  // Fails all that is open.
  void FailAll(const absl::Status& status);
  // Every request that trained the lost lineage is rolled back, whatever it was.
  void RollBack(const LostLineage& lost);
  // The requests of this lineage go on under its new name.
  void RenameLineage(const std::string& before);
  // Forgets a call that left. A log-prob pass and a verification end with it; the others go on: their files may be
  // wanted.
  void Leave(CallId call);

  // Whether an open update or another job reads the checkpoint's weights.
  bool ReadsCheckpoint(const std::string& name);
  bool any_open() const { return table_.open_count() > 0 || queue_.num_call_jobs() > 0; }
  // A call, for the end of an update or of its own job.
  bool any_waiting() const { return queue_.num_call_jobs() > 0 || !waiters_.empty(); }
  uint64_t num_open() const { return table_.open_count() + queue_.num_call_jobs(); }
  uint64_t open_bytes() const { return table_.open_bytes() + queue_.call_job_bytes(); }
  const CallCounts& call_counts() const { return call_counts_; }
  // The step at which a request that is accepted now would start, if nothing before it is skipped or fails.
  uint64_t StepAfterOpen();
  absl::Time NextDeadline() const { return waiters_.NextDeadline(); }

 private:
  void AnswerWaiter(const UpdateRecord& record, const RequestWaiter& waiter);
  // Adds to the record's status what is not kept in it: its place in the queue, and that its lineage was lost.
  v1::RequestStatus AsOfNow(const UpdateRecord& record, v1::RequestStatus status, std::optional<uint32_t> place) const;
  void End(UpdateRecord& record, v1::RequestState state, const absl::Status& failure);
  void EndRunning(const std::string& id, bool has_payload);

  Outbox* const out_;
  History* const history_;
  const Gang* const gang_;
  const Lineage* const lineage_;
  RequestTable table_;
  CallCounts call_counts_;
  RequestWaiters waiters_;  // for the ends of open updates
  JobQueue queue_;
  RunningJob running_;
  std::optional<UpdateRecord> again_;
};

// Returns how long a call waits for the end of its request: without end where its header does not say.
absl::Duration WaitOf(const v1::RequestHeader& header);

}  // namespace stemma::server
