#include "server/protocol/checkpoint_saves.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "glog/logging.h"
#include "server/protocol/answers.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

using internal::v1::KnownCheckpoint;

absl::Status ExistsError(const std::string& name) {
  return MakeError(Reason::kCheckpointExists,
                   absl::StrCat("a checkpoint named \"", name,
                                "\" exists, or is being saved; choose another name, or delete it first"),
                   {.metadata = {{"name", name}}});
}

// The error of a save while the disk has not ended what it was to do for that checkpoint.
absl::Status LateError(const std::string& name) {
  return MakeError(Reason::kInternal,
                   absl::StrCat("the disk of --data hangs: it has not ended what it was to do for checkpoint ", name,
                                "; look at it, and save again when it answers"));
}

}  // namespace

absl::Status CheckpointSaves::CheckSave(const v1::SaveCheckpointRequest& request) const {
  if (absl::Status fields = CheckSaveRequest(request); !fields.ok()) return fields;
  if (!p_.options.keeps_files) {
    return MakeError(Reason::kUnsupported, "the server has no data directory: give it one with --data");
  }
  if (request.has_expected_lineage()) {
    if (absl::Status status = p_.lineage.CheckName(request.expected_lineage()); !status.ok()) return status;
  }
  if (absl::Status status = membership_->NotServing(); !status.ok()) return status;
  const std::string& name = request.name();
  const bool exists = checkpoints_->IsTaken(name) || p_.arrivals.HasSave(name) || p_.jobs.queue().HasSave(name);
  if (!name.empty() && exists) return ExistsError(name);
  return CheckQueue(p_.options.config.limits(), p_.jobs.num_open() + p_.arrivals.size(),
                    p_.jobs.open_bytes() + p_.arrivals.bytes(), 0);
}

void CheckpointSaves::OnSave(const SaveCheckpointEvent& event) {
  if (absl::Status status = CheckSave(event.request); !status.ok()) return p_.out.Reply(event.call, status);
  Arrival arrival;
  arrival.work = SaveJob{event.request};
  arrival.senders.push_back({.call = event.call});
  p_.arrivals.Add(std::move(arrival), {p_.gang.config(), p_.calibration.rates()});
  membership_->AcceptArrivals();
}

bool CheckpointSaves::IsNew() const {
  const KnownCheckpoint* newest = NewestSound(p_.history.state());
  return p_.options.keeps_files && p_.lineage.unusable().empty() && !p_.lineage.behind() &&
         p_.lineage.step() > (newest == nullptr ? 0 : newest->step());
}

void CheckpointSaves::AddWhenDue() {
  last_save_ = std::min(last_save_, p_.out.now());
  if (tried_at_step_ > p_.lineage.step()) tried_at_step_ = 0;  // its steps were given up
  const v1::Checkpoints& rules = p_.options.config.checkpoints();
  if (rules.manual() || rules.every_steps() == 0 || !can_save() || p_.save.is_late() || !IsNew()) return;
  const KnownCheckpoint* newest = NewestSound(p_.history.state());
  // One that was begun counts, however it ended: where saving costs the workers, they are not lost again at once.
  const uint64_t since = std::max(newest == nullptr ? 0 : newest->step(), tried_at_step_);
  const bool many = p_.lineage.step() >= since + rules.every_steps();
  const bool long_ago = p_.out.now() - last_save_ >= absl::Minutes(static_cast<double>(rules.every_minutes()));
  if (!many && !long_ago) return;
  p_.jobs.queue().AddFirst({.call = 0, .work = SaveJob{}});
}

void CheckpointSaves::SaveBeforeLeaving() {
  const v1::Checkpoints& rules = p_.options.config.checkpoints();
  if (!membership_->draining() || saved_before_leaving_ || p_.jobs.running().exists() || !can_save()) return;
  saved_before_leaving_ = true;
  if (rules.manual() || rules.every_steps() == 0 || p_.save.is_late() || !p_.gang.serves() || !IsNew()) return;
  // A request whose other steps are left to the next server: it is computed again from its first one.
  if (IsInsideKept(p_.history.state(), p_.lineage.step())) return;
  const std::string job = p_.jobs.queue().AddFirst({.call = 0, .work = SaveJob{}});
  CHECK_EQ(p_.jobs.queue().TakeNext().value_or(""), job);
  Start(job, SaveJob{});
}

void CheckpointSaves::Start(const std::string& job, const SaveJob& work) {
  const v1::SaveCheckpointRequest& request = work.request;
  tried_at_step_ = p_.lineage.step();
  last_save_ = p_.out.now();
  if (p_.save.is_late()) {
    p_.save.CountFailed();
    return p_.jobs.FinishCallJob(job, LateError(p_.save.late().manifest.name()));
  }
  internal::v1::CheckpointManifest manifest;
  const auto taken = [this](const std::string& name) { return checkpoints_->IsTaken(name); };
  manifest.set_name(request.name().empty() ? AutomaticName(p_.lineage.step(), taken) : request.name());
  manifest.set_lineage(p_.lineage.name());
  manifest.set_step(p_.lineage.step());
  manifest.set_weight_version(p_.lineage.weight_version());
  manifest.set_journal_row(p_.history.last_row());
  manifest.set_saved_at_s(SavedAtSeconds(p_.history.state(), p_.out.time_of_day()));
  manifest.set_pinned(request.pinned());
  *manifest.mutable_config() = p_.gang.config();
  const std::string what = absl::StrCat("checkpoint ", manifest.name());
  const std::string folder = absl::StrCat("save-", p_.options.epoch, "-", next_folder_++);
  p_.jobs.running().BeginCallJob(job, what, SaveSeconds(p_.options.model), std::nullopt, p_.gang.num_ranks());
  p_.save.Begin({.job = job,
                 .folder = TemporaryFolderOf(folder),
                 .call = 0,
                 .client_state = request.client_state(),
                 .manifest = std::move(manifest)},
                p_.gang.num_ranks(), SaveSeconds(p_.options.model), p_.options.worker_stalled_after);
  p_.out.Add(MakeCheckpointFolderAction{.id = p_.save.id(), .name = folder});
}

void CheckpointSaves::OnFolder(const CheckpointFolderEvent& event) {
  if (const std::optional<CheckpointSave::Order> late = p_.save.TakeLate(event.id)) {
    if (event.made.ok()) p_.out.Add(DropSaveAction{late->folder});
    return p_.out.AddWarning(absl::StrCat("the disk has answered about the folder of checkpoint ",
                                          late->manifest.name(), ", which was given up"));
  }
  CHECK(p_.save.awaits_folder() && event.id == p_.save.id()) << event.id;
  if (!event.made.ok()) return Fail(p_.save.End(), event.made);
  p_.save.FolderMade();
  const CheckpointSave::Order& order = p_.save.order();
  internal::v1::Save message;
  message.set_id(order.job);
  message.set_folder(order.folder);
  for (const Gang::Worker& worker : p_.gang.workers()) p_.out.Send(worker.session, message);
  p_.out.AddReason(absl::StrCat("checkpoint ", order.manifest.name(), " is staged: step ", order.manifest.step(),
                                " of lineage ", order.manifest.lineage()));
}

// The next job begins once all ranks have staged, or could not.
void CheckpointSaves::OnSaveStaged(uint32_t rank, const internal::v1::SaveStaged& staged) {
  RunningJob& running = p_.jobs.running();
  if (!p_.save.Is(staged.id()) || !p_.save.AwaitsStaged(rank)) {
    return p_.out.AddReason(absl::StrCat("ignored: a state that is staged for ", WorkerText(staged.id())));
  }
  const absl::Status failure = staged.has_failure() ? FailureOfWorker(staged.failure()) : absl::OkStatus();
  p_.save.AddStaged(rank, failure);
  if (running.Is(staged.id()) && running.AddDone(rank, failure, staged.staged_bytes())) {
    p_.save.SetCall(p_.jobs.ReleaseCallJob(staged.id()).call);
  }
  CommitWhenAllEnded();
}

void CheckpointSaves::OnSaveDone(uint32_t rank, const internal::v1::SaveDone& done) {
  if (const std::optional<std::string> folder = p_.save.AddLateDone(done.id(), rank)) {
    return p_.out.Add(DropSaveAction{*folder});
  }
  if (!p_.save.Is(done.id()) || !p_.save.AwaitsDone(rank)) {
    return p_.out.AddReason(absl::StrCat("ignored: the end of writing ", WorkerText(done.id())));
  }
  p_.save.AddDone(rank, done, done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus());
  CommitWhenAllEnded();
}

void CheckpointSaves::CommitWhenAllEnded() {
  if (!p_.save.all_ended()) return;
  if (const absl::Status failure = p_.save.failure(); !failure.ok()) {
    p_.out.Add(DropSaveAction{p_.save.order().folder});
    return Fail(p_.save.End(), failure);
  }
  p_.out.Add(p_.save.Commit());
}

// Ranks that stand still may have a disk of their own; else it is the server's.
void CheckpointSaves::GiveUpWhenStalled() {
  p_.save.Look(p_.out.now());
  const std::string problem = p_.save.Problem();
  if (problem.empty()) return;
  if (p_.save.writes()) return Fail(p_.save.GiveUp(), MakeError(Reason::kInternal, problem));
  const bool commits = p_.save.commits();
  Fail(p_.save.GiveUp(),
       MakeError(Reason::kInternal,
                 absl::StrCat(problem, ": look at the disk of --data",
                              commits ? "; where it ends this after all, the checkpoint is listed" : "")),
       LogLevel::kError);
}

void CheckpointSaves::Fail(const CheckpointSave::Order& order, const absl::Status& failure, LogLevel level) {
  p_.save.CountFailed();
  p_.out.AddReason(level, absl::StrCat("checkpoint ", order.manifest.name(), " is not saved: ", failure.message()));
  if (order.call != 0) p_.out.Reply(order.call, failure);
  if (p_.jobs.running().Is(order.job)) p_.jobs.FinishCallJob(order.job, failure);  // it has no folder
}

void CheckpointSaves::OnWritten(const CheckpointWrittenEvent& event) {
  if (const std::optional<CheckpointSave::Order> late = p_.save.TakeLate(event.id)) return OnLate(*late, event);
  CHECK(p_.save.commits() && event.id == p_.save.id()) << event.id;
  if (!event.written.ok()) return Fail(p_.save.End(), event.written.status());
  Record(p_.save.End(), *event.written);
}

// Its call was told that it failed.
void CheckpointSaves::OnLate(const CheckpointSave::Order& order, const CheckpointWrittenEvent& event) {
  const std::string said =
      absl::StrCat("the disk has answered about checkpoint ", order.manifest.name(), ", which was given up: it is ");
  if (!event.written.ok()) {
    return p_.out.AddWarning(absl::StrCat(said, "not saved: ", event.written.status().message()));
  }
  p_.out.AddWarning(absl::StrCat(said, "saved"));
  Record(order, *event.written);
}

void CheckpointSaves::Record(const CheckpointSave::Order& order, const KnownCheckpoint& known) {
  p_.history.SaveCheckpoint(known);
  p_.out.AddReason(absl::StrCat("checkpoint ", known.name(), " is saved: step ", known.step(), " of lineage ",
                                known.lineage(), ", ", known.bytes(), " bytes"));
  if (order.call != 0) p_.out.Reply(order.call, checkpoints_->Describe(known));
  DropSurplus();
}

void CheckpointSaves::DropSurplus() {
  checkpoints_->RemoveAgain();  // the disk that has just taken a checkpoint may end what it refused before
  const uint32_t keep = std::max<uint32_t>(2, p_.options.config.checkpoints().keep());
  for (const std::string& name : SurplusCheckpoints(p_.history.state(), keep)) {
    if (!checkpoints_->IsUsed(name)) checkpoints_->Remove(name, /*call=*/0);
  }
}

}  // namespace stemma::server
