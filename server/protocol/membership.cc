#include "server/protocol/membership.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/weights_digest_text.h"
#include "server/protocol/answers.h"
#include "server/protocol/incident.h"
#include "server/protocol/lineage_changes.h"
#include "server/protocol/takeover.h"

namespace stemma::server {

void Membership::Start() {
  const bool first = p_.history.state().lineage().empty();
  p_.gang.Expect(p_.out.now());
  p_.history.Start(p_.options.epoch);
  TakeFoundCheckpoints(p_);
  if (first) {
    BeginFirstLineage(p_);
    return FindBase();
  }
  UndoWhatIsNotKept(p_);
  p_.jobs.Restore();
  if (p_.lineage.step() == 0 && p_.jobs.num_open() == 0) return FindBase();
  p_.out.AddReason(absl::StrCat("the journal is at step ", p_.lineage.step(), " of lineage ", p_.lineage.name(), ", ",
                                p_.jobs.num_open(), " requests are open"));
  ReadMissedAgain(p_);
  FindBase();
  EndWhatIsNotKept(p_);
}

// What the ranks computed since the base is computed again, or, where it is not kept, lost. It is lost when the base
// has been read: one that cannot be is passed over, and nothing is lost by that.
void Membership::FindBase() {
  const WeightsBase base = ChooseBase(p_.history.state(), p_.history.replays());
  const absl::Status missed = CheckNoneMissed(p_, base);
  if (!missed.ok()) p_.base.Withhold();
  if (!missed.ok()) return Stop(missed);
  if (base.checkpoint.empty()) EndWhatIsLost(p_, base);
  p_.base.Choose();
}

void Membership::OnBaseRead(const absl::Status& read) {
  if (absl::IsCancelled(read)) return;
  read.ok() ? EndWhatIsLost(p_, p_.base.base()) : RefuseBase(read);
  if (p_.base.ready() && p_.gang.full() && !p_.gang.begun()) BeginGeneration();
}

void Membership::RefuseBase(const absl::Status& why) {
  const std::string name = p_.base.base().checkpoint;
  if (!absl::IsDataLoss(why) && !absl::IsNotFound(why)) {
    return Stop(MakeError(Reason::kInternal, absl::StrCat("checkpoint ", name, " cannot be read: ", why.message(),
                                                          "; then start the server again")));
  }
  p_.out.AddWarning(absl::StrCat("checkpoint ", name, " is not used: ", why.message()));
  p_.history.JudgeCheckpoint(name, std::string(why.message()));
  FindBase();
}

void Membership::GoBack(const internal::v1::KnownCheckpoint& checkpoint) {
  EndLineage(p_, {checkpoint.name(), checkpoint.step()}, LogLevel::kWarning);
  if (p_.gang.begun()) return Dismiss(LogLevel::kInfo, absl::StrCat("checkpoint ", checkpoint.name(), " is loaded"));
  FindBase();
}

void Membership::Breach(SessionId session, const absl::Status& what) {
  const std::string reason = absl::StrCat("it broke the protocol: ", what.message());
  if (p_.gang.Has(session)) return Close(session, what, reason);
  p_.out.Add(CloseSessionAction{session, what});
  p_.out.AddWarning(absl::StrCat("the stream of a worker is closed: ", reason));
}

// One that may try again, as a worker that comes back before its end was seen, is nothing to look at.
void Membership::Refuse(SessionId session, const std::string& incarnation, const absl::Status& why) {
  p_.out.Add(CloseSessionAction{session, why});
  const std::string refused = absl::StrCat("worker ", incarnation, " refused: ", why.message());
  p_.out.AddReason(absl::IsFailedPrecondition(why) ? LogLevel::kInfo : LogLevel::kWarning, refused);
  if (!p_.gang.begun()) p_.gang.NoteTrouble(refused);  // else it is a spare one, which nobody misses
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
  if (!p_.base.ready()) return p_.out.AddReason(p_.base.WhatIsAwaited());
  p_.lineage.BeginGeneration(p_.base.base().step);
  diverged_ = false;
  absl::StatusOr<internal::v1::Configure> first = p_.gang.Begin(p_.out.now(), p_.base.base());
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
  absl::Status ready = p_.gang.BecomeReady(session, message);
  if (ready.ok() && !p_.base.base().checkpoint.empty()) {
    if (!CheckLoaded(message.model_digest())) return;
  } else if (ready.ok()) {
    ready = CheckModel(p_, message);
  }
  if (absl::IsInvalidArgument(ready)) return Breach(session, ready);
  if (!ready.ok()) return Close(session, ready, std::string(ready.message()));
  p_.out.AddReason(absl::StrCat(p_.gang.TextOf(session), " is ready: state ", message.weights_bytes(), " bytes, free ",
                                message.memory_free_bytes(), " bytes"));
  if (p_.gang.serves()) BeginServing();
}

// False: the generation is given up, for its weights are not those that were saved.
bool Membership::CheckLoaded(const std::string& weights_digest) {
  const internal::v1::KnownCheckpoint& base = *p_.base.checkpoint();
  const std::string &name = base.name(), &dtype = p_.gang.config().dtype();
  const std::string* known = DigestIn(base, dtype);
  const bool is_known = known != nullptr && !WeightsDiffer(*known, weights_digest), is_own = base.dtype() == dtype;
  if (is_known && (!is_own || base.loaded_dtype().empty())) return true;
  if (is_known || !is_own) {  // each change of the dtype is one of the weights
    Diverge(absl::StrCat("checkpoint ", name, is_own ? ", loaded before in " : ", saved in ",
                         is_own ? base.loaded_dtype() : base.dtype(), " and loaded now in ", dtype, ","));
    p_.history.NoteLoaded(name, is_own ? "" : dtype, is_own ? "" : weights_digest);
    return true;
  }
  const absl::Status damage = MakeError(
      Reason::kCorruptCheckpoint, absl::StrCat("checkpoint ", name, " holds other weights than were saved in it"));
  p_.history.JudgeCheckpoint(name, std::string(damage.message()));
  GiveUp(std::string(damage.message()));
  return false;
}

void Membership::BeginServing() {
  const v1::RunConfig& config = p_.gang.config();
  p_.calibration.Start(RatedDevice(p_.gang.worker(0)), config, p_.gang.links());
  if (p_.lineage.unusable().empty() && !p_.lineage.behind()) p_.out.Add(ReadinessAction{true});
  p_.arrivals.Restart({config, p_.calibration.rates()});
  p_.out.AddReason(absl::StrCat("generation ", p_.gang.generation(), " serves: step ", p_.lineage.weights_step(),
                                p_.lineage.behind() ? absl::StrCat(" of ", p_.lineage.step()) : "", " lineage ",
                                p_.lineage.name(), ", budget of a rank ", config.memory_budget_bytes(),
                                " bytes, optimizer states ",
                                config.optimizer_residency() == v1::HOST ? "in host memory" : "on the device",
                                ", plans by ", p_.calibration.RatesText()));
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
  Close(session, absl::AbortedError("it refused Configure"), absl::StrCat("it did not become ready: ", why));
}

void Membership::Close(SessionId session, const absl::Status& why, const std::string& reason) {
  p_.out.Add(CloseSessionAction{session, why});
  Lose(session, reason);
}

// A worker that waits for others takes nothing with it; one of a generation takes the generation.
void Membership::Lose(SessionId session, const std::string& reason) {
  const std::string left = absl::StrCat(p_.gang.TextOf(session), " left: ", reason);
  p_.out.AddReason(drained_ ? LogLevel::kInfo : LogLevel::kWarning, left);
  p_.gang.NoteTrouble(left);
  if (!p_.gang.begun()) return p_.gang.Leave(p_.out.now(), session);
  KeepIncident(left);
  const absl::Status ended = absl::AbortedError(absl::StrCat("generation ", p_.gang.generation(), " ended: ", left));
  for (const Gang::Worker& worker : p_.gang.workers()) {
    if (worker.session != session) p_.out.Add(CloseSessionAction{worker.session, ended});
  }
  EndGeneration(p_.gang.num_ranks() == 1 ? reason : left);
}

// Nobody can say which rank hangs: the others wait for it.
void Membership::GiveUp(const std::string& reason) {
  KeepIncident(reason);
  Dismiss(LogLevel::kWarning, reason);
}

// Workers that leave because the server does are not lost.
void Membership::KeepIncident(const std::string& reason) {
  if (!drained_) p_.out.Add(IncidentAction{MakeIncident(p_, reason)});
}

void Membership::Dismiss(LogLevel level, const std::string& reason) {
  p_.out.AddReason(level, absl::StrCat("generation ", p_.gang.generation(), " is given up: ", reason));
  p_.gang.NoteTrouble(reason);
  for (const Gang::Worker& worker : p_.gang.workers()) {
    p_.out.Add(CloseSessionAction{worker.session, absl::DeadlineExceededError(reason)});
  }
  EndGeneration(reason);
}

void Membership::EndGeneration(const std::string& reason) {
  if (p_.gang.serves()) p_.out.Add(ReadinessAction{false});
  SaveCalibration();
  p_.gang.Disband(p_.out.now());
  p_.jobs.running().GenerationEnded();
  LoseSave(p_);
  if (draining_) return LeaveEverything(p_, DrainingError(", and its worker was lost"));
  EndWhatIsRuined(p_);
  FindBase();
  if (p_.jobs.running().exists()) RetryRunning(reason);
}

// The weights are those of the model directory still, or will be computed again: the next worker has the same.
void Membership::RetryRunning(const std::string& reason) {
  const std::string id = p_.jobs.running().id();
  if (const absl::Status lost = LoseDecidedStep(p_, reason); !lost.ok()) return Stop(lost);
  if (p_.jobs.computes_again()) return p_.jobs.EndAgain();
  p_.jobs.running().End();
  UpdateRecord* record = p_.jobs.table().Find(id);
  if (record == nullptr) {
    const bool exports = std::holds_alternative<ExportJob>(p_.jobs.queue().FindCallJob(id)->work);
    if (exports) p_.out.Add(RemoveUnfinishedExportsAction{});
    return p_.jobs.FinishCallJob(id,
                                 MakeError(Reason::kAttemptsExhausted, absl::StrCat("the worker was lost: ", reason)));
  }
  const bool decided = IsDecided(*record);  // then only losses_again_max bounds how often it is tried
  if (record->cancel_requested && !decided) return p_.jobs.CancelUpdate(*record);
  if (record->attempt >= p_.options.attempts_max && !decided) {
    return p_.jobs.GiveUpUpdate(*record, absl::StrCat("the worker was lost in each of ", record->attempt,
                                                      " attempts, the last time: ", reason));
  }
  // From its first step: the weights are the model directory's, and what the lost worker computed is gone.
  ++record->attempt;
  record->k = 0;
  record->results.clear();
  record->status.set_state(v1::ACCEPTED);
  if (!p_.history.replays()) record->result.clear_steps();
  p_.jobs.queue().PutBack(id);
  p_.out.AddReason(absl::StrCat("request ", id, ": attempt ", record->attempt, " waits for a worker"));
}

bool Membership::IsDecided(const UpdateRecord& record) const {
  const auto next = static_cast<uint32_t>(record.result.steps_size());
  return p_.history.FindDecision(record.id, next) != nullptr;
}

void Membership::LoseWeights(UpdateRecord& record, const std::string& parameter) {
  if (p_.history.replays()) return UndoStep(record, parameter);
  p_.lineage.Ruin(record.id, parameter);
  p_.out.AddError(p_.lineage.unusable());
  p_.out.Add(ReadinessAction{false});
  FailEverything(p_, p_.lineage.UnusableError());
}

// A step that was computed again and ruins the weights now, which it did not before, is undone by nobody.
void Membership::UndoStep(UpdateRecord& record, const std::string& parameter) {
  const std::string what = absl::StrCat("step ", p_.lineage.step() + 1, " (request ", record.id,
                                        ") wrote numbers that are not finite into ", parameter);
  if (const internal::v1::KeptStep* step = p_.history.FindDecision(record.id, record.k); step->applied()) {
    return Stop(MakeError(Reason::kDiverged, absl::StrCat("computed again, ", what)));
  }
  const std::string taken_back =
      absl::StrCat(what, " or its optimizer state: it was taken back, and the weights of step ", p_.lineage.step(),
                   " are computed again");
  p_.history.Undo(record.id, record.k);
  p_.jobs.FinishUpdate(record, v1::FAILED, MakeError(Reason::kNonfiniteUpdate, taken_back));
  GiveUp(taken_back);
}

void Membership::Stop(const absl::Status& why) {
  p_.lineage.Stop(why);
  p_.out.AddError(absl::StrCat("nothing is served any more: ", why.message()));
  p_.out.Add(ReadinessAction{false});
  LeaveEverything(p_, p_.lineage.UnusableError());
}

void Membership::Diverge(const std::string& what) {
  if (!std::exchange(diverged_, true)) RenameLineage(p_, what);
}

void Membership::CatchUp() {
  diverged_ = false;
  p_.out.Add(ReadinessAction{true});
  p_.out.AddReason(absl::StrCat("the weights are those of step ", p_.lineage.step(), " again"));
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
  p_.jobs.LeaveWaiting(DrainingError());
}

// The time is over: what runs is dropped. A step that was committed may have been applied, to weights that end here.
void Membership::EndDrain() {
  p_.out.AddWarning("the time to drain is over");
  if (p_.jobs.running().can_abort()) p_.jobs.AbortRunning();
  LeaveEverything(p_, DrainingError(", and what ran did not end in time"));
  LoseSave(p_);
}

void Membership::FinishDrain() {
  if (!draining_ || drained_) return;
  const RunningJob& running = p_.jobs.running();
  if (running.exists() && !(running.ending() && p_.out.now() >= drain_deadline_)) return;
  if (p_.save.exists() && p_.out.now() < drain_deadline_) return;
  drained_ = true;
  SaveCalibration();
  for (const Gang::Worker& worker : p_.gang.workers()) p_.out.Send(worker.session, internal::v1::Shutdown());
  p_.out.Add(DrainedAction{});
  p_.out.AddReason("drained");
}

void Membership::Pass(absl::Time handled_at) {
  const absl::Duration counted = p_.gang.Pass(p_.out.now(), handled_at);
  if (!p_.save.awaits_folder()) p_.jobs.running().Pass(counted);  // else no rank is asked for anything yet
  p_.save.Pass(p_.out.now(), handled_at);
}

void Membership::Tick() {
  const absl::Time now = p_.out.now();
  p_.gang.Look(now);
  while (const std::optional<Gang::Problem> problem = p_.gang.FindProblem()) {
    Close(problem->session, absl::DeadlineExceededError(problem->reason), problem->reason);
  }
  if (const std::string reason = p_.jobs.running().Problem(); p_.gang.begun() && !reason.empty()) GiveUp(reason);
  if (draining_ && !drained_ && now >= drain_deadline_) EndDrain();
  if (!draining_ && p_.gang.MissingTooLong(now)) CallAgain();
}

// Nobody is kept waiting without end for workers that do not come. Kept requests stay open all the same.
void Membership::CallAgain() {
  const std::string away = absl::StrCat("no workers came back in time (", WhatWorkersLack(p_), "); ");
  if (p_.history.replays()) {
    const absl::Status status =
        MakeError(Reason::kRecovering, absl::StrCat(away, "the request is kept, and runs when they come"));
    p_.arrivals.EndAll(status);
    p_.jobs.AnswerAllWaiters(status);
    return;
  }
  for (UpdateRecord* record : p_.jobs.table().Open()) record->resumable = true;
  FailEverything(p_, MakeError(Reason::kAttemptsExhausted, absl::StrCat(away, "the weights did not change")));
}

absl::Time Membership::NextDeadline() const {
  absl::Time next = p_.gang.NextLook();
  const bool waits = p_.history.replays() ? p_.jobs.any_waiting() : p_.jobs.any_open();
  if (waits || !p_.arrivals.empty()) next = std::min(next, p_.gang.ReturnDeadline());
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
    // It is none that was expected where a job before it was refused by its plan.
    expected.ok() ? p_.jobs.Accept(*std::move(arrival)) : p_.arrivals.Refuse(*arrival, expected);
  }
}

absl::Status Membership::NotServing() const { return draining_ ? DrainingError() : ServingProblem(p_); }

}  // namespace stemma::server
