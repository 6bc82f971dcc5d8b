// Begins the next job when none runs, and takes what a running log-prob pass, verification or export brings.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) jobs run one at a time, in the order of the queue, on a gang that serves, and none begins while draining, or
//      before the ranks have stopped the one before (RunningJob).
//  (2) before a job the weights are the lineage's: the steps of ended requests that they lack are computed again first.
//  (3) what a rank sends of a job reaches its client only while the job runs, and checked
//  (server/protocol/result_check.h).
#pragma once

#include <optional>
#include <string>

#include "server/protocol/checkpoint_calls.h"
#include "server/protocol/checkpoint_saves.h"
#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"
#include "server/protocol/reload.h"
#include "server/protocol/step_protocol.h"
#include "server/protocol/written_exports.h"

namespace stemma::server {

class JobRunner {
 public:
  // The other parts outlive it.
  JobRunner(const CoordinatorParts& parts, Membership* membership, StepProtocol* steps, CheckpointCalls* checkpoints,
            CheckpointSaves* saves)
      : p_(parts),
        membership_(membership),
        steps_(steps),
        checkpoints_(checkpoints),
        saves_(saves),
        reload_(&parts.out) {}

  void StartNext();
  void OnLoaded(const LoadedEvent& event) { reload_.OnLoaded(event); }
  // False: the plan is for none of the requests that are read back.
  bool OnPlanned(const PlannedEvent& event) { return reload_.OnPlanned(event); }
  void OnResultChunk(uint32_t rank, const internal::v1::ResultChunk& chunk);
  void OnLogProbDone(uint32_t rank, const internal::v1::LogProbDone& done);
  void OnVerifyDone(uint32_t rank, const internal::v1::VerifyDone& done);
  void OnExportDone(uint32_t rank, const internal::v1::ExportDone& done);
  void OnExportFolder(const ExportFolderEvent& event);
  // Forgets it: what has the name from now on is none that this server has written.
  void OnExportRemoved(const ExportRemovedEvent& event) { written_.Forget(event.name); }

 private:
  // Starts the next thing to run; false: there is none, or it is not there yet.
  bool StartOne();
  bool StartAgain(const internal::v1::KeptRequest& kept);
  bool StartUpdate(UpdateRecord& record);
  bool CannotComputeAgain(const std::string& id, const absl::Status& why);
  // False: it has ended.
  bool PutBackUnlessEnded(const std::string& id);
  // Nullopt: it is on its way, or cannot be read or planned. Then it has ended, or all requests have: records that the
  // caller holds may be gone.
  std::optional<LoadedRequest> TakeKept(const internal::v1::KeptRequest& kept);
  // Returns what keeps a job of groups from these ranks: the model is another, or has moved on, or a plan does not fit.
  absl::Status StartProblem(const TrainingRequest& request, const RequestPlan& plan) const;
  void Start(const std::string& id, const LogProbJob& job);
  void Start(const std::string& id, VerifyJob& job);
  void Start(const std::string& id, const ExportJob& job);
  void Start(const std::string& id, const SaveJob& job) { saves_->Start(id, job); }
  void Start(const std::string& id, const LoadJob&) { checkpoints_->StartLoad(id); }
  // Takes a rank's end of a job that its first failure ends: the other ranks are told to stop then. Returns whether it
  // is over.
  bool IsOver(uint32_t rank, const absl::Status& failure);
  // Null: it does not run, its rank has ended it, or it is of another kind; then the message is dealt with.
  template <typename Work>
  CallJob* FindRunning(uint32_t rank, const std::string& id);
  void NoteWritten(const v1::ExportWeightsRequest& request);

  const CoordinatorParts p_;
  Membership* const membership_;
  StepProtocol* const steps_;
  CheckpointCalls* const checkpoints_;
  CheckpointSaves* const saves_;
  Reload reload_;
  WrittenExports written_;
  uint64_t next_folder_ = 1;  // of exports, of this start
};

}  // namespace stemma::server
