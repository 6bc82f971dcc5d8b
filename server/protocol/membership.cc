#include "server/protocol/membership.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {

absl::Status DrainingError(const std::string& what) { return MakeError(Reason::kDraining, "the server stops" + what); }

void Membership::Breach(SessionId session, const absl::Status& what) {
  const std::string reason = absl::StrCat("it broke the protocol: ", what.message());
  if (p_.gang.Has(session)) return Close(session, what, reason);
  p_.out.Add(CloseSessionAction{session, what});
  p_.out.AddReason(absl::StrCat("the stream of a worker is closed: ", reason));
}

void Membership::Refuse(SessionId session, const std::string& incarnation, const absl::Status& why) {
  p_.out.Add(CloseSessionAction{session, why});
  p_.out.AddReason(absl::StrCat("worker ", incarnation, " refused: ", why.message()));
}

void Membership::OnRegister(SessionId session, const internal::v1::Register& message) {
  if (p_.gang.Has(session)) return Breach(session, absl::InvalidArgumentError("a second Register in one session"));
  if (draining_ && !p_.gang.begun()) {
    return Refuse(session, message.incarnation(), absl::FailedPreconditionError("the server drains"));
  }
  if (absl::Status joined = p_.gang.Join(p_.out.now(), session, message); !joined.ok()) {
    return Refuse(session, message.incarnation(), joined);
  }
  if (p_.gang.full()) return BeginGeneration();
  p_.out.AddReason(absl::StrCat(p_.gang.TextOf(session), " waits: ", p_.gang.workers().size(), " of ",
                                p_.gang.num_ranks(), " ranks of the mesh are there"));
}

void Membership::BeginGeneration() {
  absl::StatusOr<internal::v1::Configure> first = p_.gang.Begin(p_.out.now(), p_.lineage.step());
  if (!first.ok()) {  // of no use to any of them: it is the configuration that does not fit
    for (const Gang::Worker& worker : p_.gang.workers()) Refuse(worker.session, worker.incarnation, first.status());
    return p_.gang.Disband(p_.out.now());
  }
  p_.out.Send(p_.gang.worker(0).session, *std::move(first));
  for (const Gang::Worker& worker : p_.gang.workers()) {
    p_.out.AddReason(absl::StrCat(p_.gang.TextOf(worker.session), " joins generation ", p_.gang.generation()));
  }
}

void Membership::OnStoreOpened(SessionId session, const internal::v1::StoreOpened& opened) {
  absl::StatusOr<std::vector<internal::v1::Configure>> others = p_.gang.OpenStore(session, opened.address());
  if (!others.ok()) return Breach(session, others.status());
  for (internal::v1::Configure& configure : *others) {
    const uint32_t rank = configure.rank();
    p_.out.Send(p_.gang.worker(rank).session, std::move(configure));
  }
}

void Membership::OnReady(SessionId session, const internal::v1::Ready& message) {
  const absl::Status ready = p_.gang.BecomeReady(session, message);
  if (absl::IsFailedPrecondition(ready)) return Close(session, ready, std::string(ready.message()));
  if (!ready.ok()) return Breach(session, ready);
  p_.out.AddReason(absl::StrCat(p_.gang.TextOf(session), " is ready: state ", message.weights_bytes(), " bytes, free ",
                                message.memory_free_bytes(), " bytes"));
  if (p_.gang.serves()) BeginServing();
}

void Membership::BeginServing() {
  const v1::RunConfig& config = p_.gang.config();
  p_.calibration.Start(p_.gang.worker(0).device.kind, config);
  p_.out.Add(ReadinessAction{true});
  p_.arrivals.Restart({config, p_.calibration.rates()});
  p_.out.AddReason(absl::StrCat("generation ", p_.gang.generation(), " serves: step ", p_.lineage.step(), " lineage ",
                                p_.lineage.name(), ", budget of a rank ", config.memory_budget_bytes(),
                                " bytes, optimizer states ",
                                config.optimizer_residency() == v1::HOST ? "in host memory" : "on the device"));
  AcceptArrivals();  // an export needs no plan, and nothing may stand before it any more
}

void Membership::OnHeartbeat(SessionId session, const internal::v1::Heartbeat& heartbeat) {
  p_.gang.Heard(session, heartbeat);
  p_.jobs.running().Heard(p_.gang.progress(), p_.gang.PhasesText());
}

void Membership::OnLost(const WorkerLostEvent& event) {
  if (p_.gang.Has(event.session)) Lose(event.session, event.reason);
}

void Membership::OnRefusedConfigure(SessionId session, const std::string& why) {
  Close(session, absl::AbortedError("it refused Configure"), absl::StrCat("it cannot load the model: ", why));
}

void Membership::Close(SessionId session, const absl::Status& why, const std::string& reason) {
  p_.out.Add(CloseSessionAction{session, why});
  Lose(session, reason);
}

// A worker that waits for others takes nothing with it; one of a generation takes the generation.
void Membership::Lose(SessionId session, const std::string& reason) {
  const std::string left = absl::StrCat(p_.gang.TextOf(session), " left: ", reason);
  p_.out.AddReason(left);
  if (!p_.gang.begun()) return p_.gang.Leave(p_.out.now(), session);
  const absl::Status ended = absl::AbortedError(absl::StrCat("generation ", p_.gang.generation(), " ended: ", left));
  for (const Gang::Worker& worker : p_.gang.workers()) {
    if (worker.session != session) p_.out.Add(CloseSessionAction{worker.session, ended});
  }
  EndGeneration(p_.gang.num_ranks() == 1 ? reason : left);
}

// Nobody can say which rank hangs: the others wait for it.
void Membership::GiveUp(const std::string& reason) {
  p_.out.AddReason(absl::StrCat("generation ", p_.gang.generation(), " is given up: ", reason));
  for (const Gang::Worker& worker : p_.gang.workers()) {
    p_.out.Add(CloseSessionAction{worker.session, absl::DeadlineExceededError(reason)});
  }
  EndGeneration(reason);
}

void Membership::EndGeneration(const std::string& reason) {
  const bool served = p_.gang.serves();
  if (served) p_.out.Add(ReadinessAction{false});
  SaveCalibration();
  p_.gang.Disband(p_.out.now());
  if (draining_) return FailEverything(DrainingError(", and its worker was lost"));
  if (served && p_.lineage.EndsWithItsWorker()) return EndLineage();
  if (p_.jobs.running().exists()) RetryRunning(reason);
}

void Membership::EndLineage() {
  const LostLineage lost = p_.lineage.End();
  p_.out.AddReason(p_.lineage.LostText(lost));
  p_.jobs.RollBack(lost);
  FailEverything(p_.lineage.LostError(lost));
}

// The weights are those of the model directory still: the next worker has the same.
void Membership::RetryRunning(const std::string& reason) {
  const std::string id = p_.jobs.running().id();
  p_.jobs.running().End();
  UpdateRecord* record = p_.jobs.table().Find(id);
  if (record == nullptr) {
    return p_.jobs.FinishCallJob(id,
                                 MakeError(Reason::kAttemptsExhausted, absl::StrCat("the worker was lost: ", reason)));
  }
  if (record->cancel_requested) return p_.jobs.CancelUpdate(*record);
  if (record->attempt >= p_.options.attempts_max) {
    record->resumable = true;
    return p_.jobs.FinishUpdate(
        *record, v1::FAILED,
        MakeError(Reason::kAttemptsExhausted,
                  absl::StrCat("the worker was lost in each of ", record->attempt, " attempts, the last time: ", reason,
                               "; the weights did not change; the same request may be sent again")));
  }
  // From its first step: no weight has changed, and what the lost worker computed before it is gone.
  ++record->attempt;
  record->k = 0;
  record->results.clear();
  record->status.set_state(v1::ACCEPTED);
  record->result.clear_steps();
  p_.jobs.queue().PutBack(id);
  p_.out.AddReason(absl::StrCat("request ", id, ": attempt ", record->attempt, " waits for a worker"));
}

void Membership::LoseWeights(const std::string& request_id, const std::string& parameter) {
  p_.lineage.Ruin(request_id, parameter);
  p_.out.AddReason(p_.lineage.unusable());
  p_.out.Add(ReadinessAction{false});
  FailEverything(p_.lineage.UnusableError());
}

void Membership::FailEverything(const absl::Status& status) {
  p_.arrivals.EndAll(status);
  p_.jobs.FailAll(status);
}

void Membership::SaveCalibration() {
  if (auto book = p_.calibration.TakeUnsaved()) p_.out.Add(SaveCalibrationAction{*std::move(book)});
}

void Membership::Drain(absl::Duration within) {
  if (draining_) return;
  draining_ = true;
  drain_deadline_ = p_.out.now() + within;
  p_.out.Add(ReadinessAction{false});
  const RunningJob& running = p_.jobs.running();
  p_.out.AddReason(absl::StrCat(
      "draining: ", running.exists() ? absl::StrCat("at most ", absl::FormatDuration(within), " for ", running.id())
                                     : "nothing runs"));
  p_.arrivals.EndAll(DrainingError());
  p_.jobs.FailWaiting(DrainingError());
}

// The time is over: what runs is dropped. A step that was committed may have been applied, to weights that end here.
void Membership::EndDrain() {
  p_.out.AddReason("the time to drain is over");
  if (p_.jobs.running().exists() && !p_.jobs.running().committed()) p_.jobs.AbortRunning();
  FailEverything(DrainingError(", and what ran did not end in time"));
}

void Membership::FinishDrain() {
  if (!draining_ || drained_ || p_.jobs.running().exists()) return;
  drained_ = true;
  SaveCalibration();
  for (const Gang::Worker& worker : p_.gang.workers()) p_.out.Send(worker.session, internal::v1::Shutdown());
  p_.out.Add(DrainedAction{});
  p_.out.AddReason("drained");
}

void Membership::Pass() { p_.jobs.running().Pass(p_.gang.Pass(p_.out.now())); }

void Membership::Tick() {
  const absl::Time now = p_.out.now();
  p_.gang.Look(now);
  while (const std::optional<Gang::Problem> problem = p_.gang.FindProblem()) {
    Close(problem->session, absl::DeadlineExceededError(problem->reason), problem->reason);
  }
  if (const std::string reason = p_.jobs.running().Problem(); p_.gang.begun() && !reason.empty()) GiveUp(reason);
  if (draining_ && !drained_ && now >= drain_deadline_) EndDrain();
  if (!draining_ && p_.gang.MissingTooLong(now)) {
    for (UpdateRecord* record : p_.jobs.table().Open()) record->resumable = true;
    FailEverything(MakeError(Reason::kAttemptsExhausted, "no worker came back; the weights did not change"));
  }
}

absl::Time Membership::NextDeadline() const {
  absl::Time next = p_.gang.NextLook();
  if (p_.jobs.any_open() || !p_.arrivals.empty()) next = std::min(next, p_.gang.ReturnDeadline());
  if (draining_ && !drained_) next = std::min(next, drain_deadline_);
  return next;
}

void Membership::AcceptArrivals() {
  while (p_.gang.serves()) {
    std::optional<Arrival> arrival = p_.arrivals.TakeNext();
    if (!arrival) return;
    absl::Status expected;
    if (arrival->request != nullptr) {
      expected = p_.lineage.CheckExpected(arrival->request->header(), p_.jobs.StepAfterOpen());
    }
    if (expected.ok()) {
      p_.jobs.Accept(*std::move(arrival));
    } else {  // a job before it was refused by its plan
      p_.arrivals.Refuse(*arrival, expected);
    }
  }
}

absl::Status Membership::NotServing() const {
  if (draining_) return DrainingError();
  if (!p_.lineage.unusable().empty()) return p_.lineage.UnusableError();
  if (p_.gang.serves()) return absl::OkStatus();
  if (!p_.gang.ever_served()) return MakeError(Reason::kStarting, "no worker has loaded the model yet");
  return MakeError(Reason::kRecovering, "the worker was lost and no other has loaded the model yet");
}

}  // namespace stemma::server
