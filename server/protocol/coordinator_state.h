// The server as a state machine: one worker, a queue of jobs (updates, log-prob passes, exports), the step protocol.
// Pure: events and the time in, actions and a reason out; no clock, thread or I/O.
//
// Thread safety: none; owned by the coordinator thread.
// Invariants:
//  (1) jobs run one at a time, in the order they were accepted, which is the order in which they came; nothing runs
//      between Prepare and Applied of a step.
//  (2) a vote or Applied counts only if all its keys are those of the running attempt and its session is the worker's.
//  (3) step_ and weight_version_ change when an Applied counts, or with the lineage; weight_version_ never falls.
//  (4) weights that are lost end their lineage: every open job, and every request that trained it, answers ROLLED_BACK
//      from then on, never a silent rewind. An open update's lineage is the model's.
//  (5) plans are made elsewhere (PlanAction), for the worker that is there: nothing is accepted without one.
//  (6) a worker whose message breaks the protocol loses its session; what it says reaches clients only checked.
//  (7) a worker that is silent, or whose job stands still, is given up as one that died (server/protocol/job_watch.h).
//  (8) weights that a step made not finite serve nothing: every job answers NONFINITE_UPDATE until their worker goes.
//
// Draining: what runs goes on to the end of its step, pass or export, at most until the deadline; what waits, and what
// would follow, answers DRAINING.
//
// Step: Prepare sent (PREPARING) -> Vote -> Apply sent (COMMITTED) -> Applied (APPLIED) -> the next k, or DONE.
// Errors of requests: docs/errors.md.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/model/model_config.h"
#include "server/planner/calibration.h"
#include "server/protocol/arrival.h"
#include "server/protocol/events.h"
#include "server/protocol/job_watch.h"
#include "server/protocol/request_plan.h"
#include "server/protocol/request_table.h"
#include "server/protocol/result_check.h"

namespace stemma::server {

struct CoordinatorOptions {
  uint64_t epoch = 1;
  std::string lineage_prefix;  // random for each start: lineages are "<prefix>-1", "<prefix>-2", ...
  std::string version;
  std::string data_directory;
  v1::RunConfig config;  // limits filled in
  ModelConfig model;
  CalibrationBook calibration;                             // of earlier runs
  absl::Duration worker_lost_after = absl::Seconds(15);    // without any message; > 3 heartbeats of 1 s
  absl::Duration worker_stalled_after = absl::Minutes(5);  // without progress of its job, at the least
  absl::Duration worker_return_within = absl::Minutes(5);  // else open jobs answer ATTEMPTS_EXHAUSTED
  uint32_t attempts_max = 3;                               // of one step
};

class CoordinatorState {
 public:
  explicit CoordinatorState(CoordinatorOptions options);

  Decision Handle(absl::Time now, const Event& event);

  // When a TickEvent is due; InfiniteFuture: not before another event.
  absl::Time NextDeadline();

 private:
  struct Worker {
    SessionId session = 0;
    std::string incarnation;
    std::string device;
    std::string host;
    uint32_t pid = 0;
    v1::RunConfig config;  // its memory divided
    bool ready = false;
    absl::Duration silent_for = absl::ZeroDuration();  // counted
    std::optional<JobWatch> loading;                   // until it is ready
  };
  // A log-prob pass or an export: it ends with its call.
  struct CallJob {
    CallId call = 0;
    std::shared_ptr<const TrainingRequest> request;  // log-prob pass; null: an export
    RequestPlan plan;
    v1::ExportWeightsRequest export_request;
  };
  enum class Phase { kPreparing, kCommitted, kCallJob };
  struct Running {
    std::string id;
    Phase phase = Phase::kCallJob;
    internal::v1::StepKey key = {};
    internal::v1::Vote vote = {};  // kCommitted
    v1::StepResult::Outcome outcome = v1::StepResult::APPLIED;
    absl::Time prepared_at = absl::InfinitePast();
    std::optional<ResultCheck> results = std::nullopt;  // nullopt: the job has none
    std::optional<JobWatch> watch = std::nullopt;       // of the phase; always set between events
  };

  // Membership and recovery: coordinator_worker.cc.
  void OnEvent(const WorkerMessageEvent& event);
  void OnEvent(const WorkerLostEvent& event);
  void OnRegister(SessionId session, const internal::v1::Register& message);
  void OnReady(const internal::v1::Ready& message);
  Calibration NewCalibration(const std::string& device) const;
  void StartCalibration();
  void SaveCalibration();
  void Breach(SessionId session, const absl::Status& what);
  void LoseWorker(const std::string& reason);
  void RetryRunningStep(const std::string& reason);
  void FailEverything(const absl::Status& status);
  void Drain(absl::Duration within);
  void EndDrain();
  void FinishDrain();
  void Count();
  void OnHeartbeat(const internal::v1::Heartbeat& heartbeat);
  std::string WorkerProblem() const;
  JobWatch Watch(const std::string& what, const JobSeconds& predicted) const;
  void Tick();

  // Weights and their lineages: coordinator_lineage.cc.
  struct LostLineage {
    std::string name;
    uint64_t step = 0;  // that its weights had reached
  };
  std::string NewLineage();
  void LoseLineage();
  std::string LostText(const LostLineage& lost) const;
  std::map<std::string, std::string> LostMetadata(const LostLineage& lost) const;
  absl::Status RolledBackError(const UpdateRecord& record) const;
  absl::Status CheckLineage(const std::string& expected) const;
  absl::Status CheckExpected(const v1::RequestHeader& header, uint64_t step) const;

  // The step protocol and jobs: coordinator_steps.cc.
  void StartJobs();
  void StartUpdate(UpdateRecord& record);
  void StartCallJob(const std::string& id, const CallJob& job);
  void PrepareNextStep(UpdateRecord& record);
  void SendPrepare(UpdateRecord& record);
  void OnVote(const internal::v1::Vote& vote);
  void OnNoVote(UpdateRecord& record, const internal::v1::Vote& vote, const std::string& problem);
  void SendApply(UpdateRecord& record, const internal::v1::Vote& vote, v1::StepResult::Outcome outcome);
  void OnApplied(const internal::v1::Applied& applied);
  void LoseWeights(const UpdateRecord& record, const std::string& parameter);
  void OnResultChunk(const internal::v1::ResultChunk& chunk);
  void OnLogProbDone(const internal::v1::LogProbDone& done);
  void OnExportDone(const internal::v1::ExportDone& done);
  CallJob* RunningCallJob(const std::string& id, bool is_export);
  void Ignore(const std::string& what);
  void OnRefused(const internal::v1::Refused& refused);
  void Measure(const UpdateRecord& record, const internal::v1::Applied& applied);
  void AddStepResult(UpdateRecord& record, v1::StepResult::Outcome outcome, const internal::v1::Applied* applied);
  void FinishUpdate(UpdateRecord& record, v1::RequestState state, const absl::Status& failure);
  void CancelUpdate(UpdateRecord& record);
  void FinishCallJob(const std::string& id, Reply reply);
  void AbortRunning();

  // Clients' calls: coordinator_calls.cc.
  void OnEvent(const SubmitEvent& event);
  void OnEvent(const ExportEvent& event);
  void OnEvent(const GetRequestEvent& event);
  void OnEvent(const CancelEvent& event);
  void OnEvent(const ReadResultsEvent& event);
  void OnEvent(const ListRequestsEvent& event);
  void OnEvent(const GetModelEvent& event);
  void OnEvent(const GetServerInfoEvent& event);
  void OnEvent(const CallGoneEvent& event);
  void OnEvent(const DrainEvent& event) { Drain(event.within); }
  void OnEvent(const TickEvent&) { Tick(); }
  bool AnswerRepeat(const SubmitEvent& event);
  absl::Status AdmitJob(uint64_t bytes) const;
  UpdateRecord& AcceptUpdate(const Arrival& arrival, RequestPlan plan);
  void Wait(UpdateRecord& record, RequestWaiter waiter);
  void AnswerWaiter(const UpdateRecord& record, const RequestWaiter& waiter);
  absl::Status FailureOf(const UpdateRecord& record) const;
  v1::RequestStatus StatusOf(const UpdateRecord& record) const;
  v1::ModelInfo::State ModelState() const;
  absl::Status NotServing() const;
  std::string ExportPath(const std::string& name) const;
  absl::Status ExportExistsError(const std::string& name) const;
  bool ExportWaits(const std::string& name) const;
  absl::Status UnusableError() const;
  uint64_t StepAfterQueue();
  uint64_t StepAfterAccepted();

  // Jobs that are not accepted yet: coordinator_arrivals.cc.
  void OnEvent(const PlannedEvent& event);
  void Receive(Arrival arrival);
  void StartPlan(Arrival& arrival);
  void StopPlan(const Arrival& arrival);
  void RestartPlans();
  void AcceptArrivals();
  void Accept(Arrival& arrival);
  void CancelArrival(Arrival& arrival, CallId call);
  Arrival* FindArrival(const std::string& request_id);
  bool JoinArrival(const SubmitEvent& event);
  void Watch(Arrival& arrival, const RequestWaiter& watcher);
  void EndArrival(std::list<Arrival>::iterator arrival, const absl::Status& status);
  void EndArrivals(const absl::Status& status);
  void LeaveArrivals(CallId call);
  void AnswerDueWatchers();

  template <typename Message>
  void SendToWorker(Message message);
  void Reply(CallId call, stemma::server::Reply reply);
  void Say(std::string_view reason);
  bool IsRunning(const std::string& id) const { return running_ && running_->id == id; }
  UpdateRecord& RunningUpdate();

  const CoordinatorOptions options_;

  absl::Time now_;     // of the event being handled
  Decision decision_;  // being made

  std::optional<Worker> worker_;
  v1::RunConfig config_;  // in force: the worker's, once it is ready
  bool ever_ready_ = false;
  CountedTime counted_;
  absl::Time next_look_ = absl::InfiniteFuture();  // at the worker; infinite without one
  absl::Time worker_missing_since_ = absl::InfiniteFuture();
  uint64_t generation_ = 0;
  uint64_t lineages_ = 0;
  std::string lineage_;
  std::deque<LostLineage> lost_lineages_;  // oldest first, a bounded number of them
  uint64_t step_ = 0;
  uint64_t weight_version_ = 1;  // 1: what the model directory holds
  std::string unusable_;         // why nothing is served though a worker is there; "": its weights are finite
  bool draining_ = false, drained_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();

  // The speed of the worker's machine; plans that were made keep the rates that they were made with.
  CalibrationBook calibration_book_;
  std::string calibration_key_;
  Calibration calibration_;
  int samples_unsaved_ = 0;

  std::list<Arrival> arrivals_;  // in the order in which they came
  PlanId next_plan_ = 1;
  RequestTable table_;
  std::map<std::string, CallJob> call_jobs_;  // ids start with '~', which no request id does
  uint64_t next_call_job_ = 1;
  uint64_t call_job_bytes_ = 0;
  std::deque<std::string> queue_;  // ids of updates and call jobs, the running one not among them
  std::optional<Running> running_;
  uint64_t ignored_ = 0;  // messages of another attempt or job
};

}  // namespace stemma::server
