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
  p_.out.Add(CloseSessionAction{session, what});
  const std::string reason = absl::StrCat("it broke the protocol: ", what.message());
  if (p_.gang.Has(session)) return Lose(reason);
  p_.out.AddReason(absl::StrCat("the stream of a worker is closed: ", reason));
}

void Membership::Refuse(SessionId session, const std::string& incarnation, const absl::Status& why) {
  p_.out.Add(CloseSessionAction{session, why});
  p_.out.AddReason(absl::StrCat("worker ", incarnation, " refused: ", why.message()));
}

void Membership::OnRegister(SessionId session, const internal::v1::Register& message) {
  if (p_.gang.Has(session)) return Breach(session, absl::InvalidArgumentError("a second Register in one session"));
  if (draining_ && !p_.gang.present()) {
    return Refuse(session, message.incarnation(), absl::FailedPreconditionError("the server drains"));
  }
  absl::StatusOr<internal::v1::Configure> configure = p_.gang.Join(p_.out.now(), session, message, p_.lineage.step());
  if (!configure.ok()) return Refuse(session, message.incarnation(), configure.status());
  p_.out.Send(session, *std::move(configure));
  p_.out.AddReason(absl::StrCat("worker ", message.incarnation(), " on ", p_.gang.worker().host, " pid ", message.pid(),
                                " joins generation ", p_.gang.generation()));
}

void Membership::OnReady(const internal::v1::Ready& message) {
  if (absl::Status status = p_.gang.BecomeReady(message); !status.ok()) {
    return Breach(p_.gang.worker().session, status);
  }
  const v1::RunConfig& config = p_.gang.config();
  p_.calibration.Start(p_.gang.worker().device, config);
  p_.out.Add(ReadinessAction{true});
  p_.arrivals.Restart({config, p_.calibration.rates()});
  p_.out.AddReason(absl::StrCat("worker ", p_.gang.worker().incarnation, " is ready: step ", p_.lineage.step(),
                                " lineage ", p_.lineage.name(), " budget ", config.memory_budget_bytes(),
                                " bytes, state ", message.weights_bytes(), " bytes, free ", message.memory_free_bytes(),
                                " bytes, optimizer states ",
                                config.optimizer_residency() == v1::HOST ? "in host memory" : "on the device"));
  AcceptArrivals();  // an export needs no plan, and nothing may stand before it any more
}

void Membership::OnHeartbeat(const internal::v1::Heartbeat& heartbeat) { p_.jobs.running().Heard(heartbeat); }

void Membership::OnLost(const WorkerLostEvent& event) {
  if (p_.gang.Has(event.session)) Lose(event.reason);
}

void Membership::OnRefusedConfigure(const std::string& why) {
  Close(absl::AbortedError("it refused Configure"), absl::StrCat("it cannot load the model: ", why));
}

void Membership::Close(const absl::Status& why, const std::string& reason) {
  p_.out.Add(CloseSessionAction{p_.gang.worker().session, why});
  Lose(reason);
}

void Membership::Lose(const std::string& reason) {
  const Gang::Worker worker = p_.gang.worker();
  p_.out.AddReason(
      absl::StrCat("worker ", worker.incarnation, " (pid ", worker.pid, " on ", worker.host, ") left: ", reason));
  if (worker.ready) p_.out.Add(ReadinessAction{false});
  SaveCalibration();
  p_.gang.Leave(p_.out.now());
  if (draining_) return FailEverything(DrainingError(", and its worker was lost"));
  if (worker.ready && p_.lineage.EndsWithItsWorker()) return EndLineage();
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
  if (p_.gang.present()) p_.out.Send(p_.gang.worker().session, internal::v1::Shutdown());
  p_.out.Add(DrainedAction{});
  p_.out.AddReason("drained");
}

void Membership::Pass() { p_.jobs.running().Pass(p_.gang.Pass(p_.out.now())); }

void Membership::Tick() {
  const absl::Time now = p_.out.now();
  p_.gang.Look(now);
  std::string reason = p_.gang.Problem();
  if (reason.empty() && p_.gang.present()) reason = p_.jobs.running().Problem();
  if (!reason.empty()) Close(absl::DeadlineExceededError(reason), reason);
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
