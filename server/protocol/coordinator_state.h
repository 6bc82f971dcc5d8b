// The server as a state machine: one gang of workers, a queue of jobs (updates, log-prob passes, verifications,
// exports), the step protocol. Pure: events, the time and the room on the disk in, actions and reasons out; no clock,
// thread or I/O.
//
// This class says which part handles which event; coordinator_state.cc is the page to begin with. What is kept:
//   Gang               the workers, their ranks and generation, the configuration in force
//   History            what the journal holds, and its new rows
//   Lineage            which weights the model has, and which were lost
//   BaseKeeper         with which weights the next generation begins
//   CheckpointSave     the save that runs
//   CalibrationKeeper  the measured speed of the workers' machines
//   Arrivals           jobs whose plans are being made
//   Jobs               accepted jobs: RequestTable, JobQueue, RunningJob
// What acts on it: ClientCalls, CheckpointCalls, CheckpointSaves, Membership, JobRunner, StepProtocol. Each decision is
// written into one Outbox.
//
// Thread safety: none; owned by the coordinator thread.
// Invariants:
//  (1) jobs run one at a time, in the order they were accepted, which is the order in which they came.
//  (2) a message of a worker counts only from its session, and a step's only with all keys of the running attempt.
//  (3) plans are made elsewhere (PlanAction), for the workers that are there: nothing is accepted without one.
//  (4) what a worker says reaches clients only checked (server/protocol/worker_messages.h).
// Errors of requests: docs/errors.md.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "server/protocol/checkpoint_calls.h"
#include "server/protocol/checkpoint_saves.h"
#include "server/protocol/client_calls.h"
#include "server/protocol/coordinator_options.h"
#include "server/protocol/coordinator_parts.h"
#include "server/protocol/job_runner.h"
#include "server/protocol/membership.h"
#include "server/protocol/server_numbers.h"
#include "server/protocol/step_protocol.h"

namespace stemma::server {

// When an event is handled.
struct HandledTimes {
  // On the clock of the event's own time, where that is later: a server that hung did not listen while its events came,
  // and counts no silence and no standstill meanwhile (CountedTime).
  absl::Time handled_at = absl::InfinitePast();
  absl::Time time_of_day = absl::InfinitePast();  // infinite: the event's own time
};

class CoordinatorState {
 public:
  explicit CoordinatorState(CoordinatorOptions options);
  CoordinatorState(const CoordinatorState&) = delete;  // its parts hold one another
  CoordinatorState& operator=(const CoordinatorState&) = delete;

  // `now`: when the event came, which deadlines are held to, on a clock that nobody sets. `free_bytes`: asked where the
  // journal is compacted.
  Decision Handle(absl::Time now, const Event& event, FreeBytesFunction free_bytes = nullptr,
                  const HandledTimes& times = {});

  // When a TickEvent is due; InfiniteFuture: not before another event.
  absl::Time NextDeadline();

  // Returns what may be read of it between two events.
  ServerNumbers Numbers() const;

 private:
  // `journal`: taken out of the options, which are kept: requests are in memory twice, as rows and as records, and no
  // more often.
  CoordinatorState(CoordinatorOptions& options, internal::v1::JournalState journal);

  void On(const WorkerMessageEvent& event);
  void On(const WorkerLostEvent& event) { membership_.OnLost(event); }
  void On(const SubmitEvent& event) { calls_.OnSubmit(event); }
  void On(const ExportEvent& event) { calls_.OnExport(event); }
  void On(const DeleteExportEvent& event) { calls_.OnDeleteExport(event); }
  void On(const ExportFolderEvent& event) { runner_.OnExportFolder(event); }
  void On(const ExportRemovedEvent& event) {
    runner_.OnExportRemoved(event);
    calls_.OnExportRemoved(event);
  }
  void On(const SaveCheckpointEvent& event) { saves_.OnSave(event); }
  void On(const LoadCheckpointEvent& event) { checkpoints_.OnLoad(event); }
  void On(const ListCheckpointsEvent& event) { checkpoints_.OnList(event); }
  void On(const VerifyCheckpointEvent& event) { checkpoints_.OnVerify(event); }
  void On(const PinCheckpointEvent& event) { checkpoints_.OnPin(event); }
  void On(const DeleteCheckpointEvent& event) { checkpoints_.OnDelete(event); }
  void On(const CheckpointFolderEvent& event) { saves_.OnFolder(event); }
  void On(const CheckpointProgressEvent&) { save_.DiskMoved(); }
  void On(const CheckpointWrittenEvent& event) { saves_.OnWritten(event); }
  void On(const CheckpointReadEvent& event) { checkpoints_.OnRead(event); }
  void On(const CheckpointRemovedEvent& event) { checkpoints_.OnRemoved(event); }
  void On(const GetRequestEvent& event) { calls_.OnGetRequest(event); }
  void On(const CancelEvent& event) { calls_.OnCancel(event); }
  void On(const ReadResultsEvent& event) { calls_.OnReadResults(event); }
  void On(const ListRequestsEvent& event) { calls_.OnListRequests(event); }
  void On(const GetModelEvent& event) { calls_.OnGetModel(event); }
  void On(const GetServerInfoEvent& event) { calls_.OnGetServerInfo(event); }
  void On(const CallGoneEvent& event) {
    checkpoints_.OnGone(event.call);
    calls_.OnGone(event);
  }
  void On(const PlannedEvent& event) {
    if (!runner_.OnPlanned(event)) calls_.OnPlanned(event);
  }
  void On(const LoadedEvent& event) { runner_.OnLoaded(event); }
  void On(const StartEvent&) { membership_.Start(); }
  void On(const DrainEvent& event) { membership_.Drain(event.within); }
  void On(const TickEvent&);
  // Handles what a worker of the generation says. REQUIRES: one has begun.
  void OnRank(SessionId session, const internal::v1::WorkerMessage& message);

  const CoordinatorOptions options_;
  Outbox out_;
  History history_;
  Lineage lineage_;
  BaseKeeper base_;
  CheckpointSave save_;
  Gang gang_;
  CalibrationKeeper calibration_;
  Arrivals arrivals_;
  Jobs jobs_;
  const CoordinatorParts parts_;  // all of them

  Membership membership_;
  StepProtocol steps_;
  CheckpointCalls checkpoints_;
  CheckpointSaves saves_;
  JobRunner runner_;
  ClientCalls calls_;
};

}  // namespace stemma::server
