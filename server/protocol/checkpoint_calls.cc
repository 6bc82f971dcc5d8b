#include "server/protocol/checkpoint_calls.h"

#include <algorithm>
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

absl::Status DamageOf(const absl::Status& read) {
  return absl::IsDataLoss(read) || absl::IsNotFound(read) ? read : absl::OkStatus();
}

}  // namespace

v1::Checkpoint CheckpointCalls::Describe(const KnownCheckpoint& known) const {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(known.name());
  checkpoint.set_path(absl::StrCat(p_.options.data_directory, "/checkpoints/", known.name()));
  checkpoint.set_lineage(known.lineage());
  checkpoint.set_step(known.step());
  checkpoint.set_weight_version(known.weight_version());
  checkpoint.set_dtype(known.dtype());
  checkpoint.set_weights_digest(known.weights_digest());
  checkpoint.set_bytes(known.bytes());
  checkpoint.set_saved_at_s(known.saved_at_s());
  checkpoint.set_pinned(known.pinned());
  checkpoint.set_damage(known.damage());
  checkpoint.set_client_state_bytes(known.client_state_bytes());
  return checkpoint;
}

// ------------------------------------------------------------------------------------------------------------- saving

absl::Status CheckpointCalls::CheckSave(const v1::SaveCheckpointRequest& request) const {
  if (absl::Status fields = CheckSaveRequest(request); !fields.ok()) return fields;
  if (!p_.options.keeps_files) {
    return MakeError(Reason::kUnsupported, "the server has no data directory: give it one with --data");
  }
  if (request.has_expected_lineage()) {
    if (absl::Status status = p_.lineage.CheckName(request.expected_lineage()); !status.ok()) return status;
  }
  if (absl::Status status = membership_->NotServing(); !status.ok()) return status;
  const std::string& name = request.name();
  const bool exists =
      IsTaken(name) || p_.save.Writes(name) || p_.arrivals.HasSave(name) || p_.jobs.queue().HasSave(name);
  if (!name.empty() && exists) return ExistsError(name);
  return CheckQueue(p_.options.config.limits(), p_.jobs.num_open() + p_.arrivals.size(),
                    p_.jobs.open_bytes() + p_.arrivals.bytes(), 0);
}

bool CheckpointCalls::IsTaken(const std::string& name) const {
  const std::vector<std::string>& others = p_.options.other_folders;
  return FindCheckpoint(p_.history.state(), name) != nullptr ||
         std::find(others.begin(), others.end(), name) != others.end();
}

void CheckpointCalls::OnSave(const SaveCheckpointEvent& event) {
  if (absl::Status status = CheckSave(event.request); !status.ok()) return p_.out.Reply(event.call, status);
  Arrival arrival;
  arrival.work = SaveJob{event.request};
  arrival.senders.push_back({.call = event.call});
  p_.arrivals.Add(std::move(arrival), {p_.gang.config(), p_.calibration.rates()});
  membership_->AcceptArrivals();
}

bool CheckpointCalls::IsNew() const {
  const KnownCheckpoint* newest = NewestSound(p_.history.state());
  return p_.options.keeps_files && p_.lineage.unusable().empty() && !p_.lineage.behind() &&
         p_.lineage.step() > (newest == nullptr ? 0 : newest->step());
}

void CheckpointCalls::AddWhenDue() {
  last_save_ = std::min(last_save_, p_.out.now());
  const v1::Checkpoints& rules = p_.options.config.checkpoints();
  if (rules.manual() || rules.every_steps() == 0 || !can_save() || !IsNew()) return;
  const KnownCheckpoint* newest = NewestSound(p_.history.state());
  // One that was begun counts, however it ended: where saving costs the workers, they are not lost again at once.
  const uint64_t tried = tried_at_step_ <= p_.lineage.step() ? tried_at_step_ : 0;  // else of steps that were given up
  const uint64_t since = std::max(newest == nullptr ? 0 : newest->step(), tried);
  const bool many = p_.lineage.step() >= since + rules.every_steps();
  const bool long_ago = p_.out.now() - last_save_ >= absl::Minutes(static_cast<double>(rules.every_minutes()));
  if (!many && !long_ago) return;
  p_.jobs.queue().AddFirst({.call = 0, .work = SaveJob{}});
}

void CheckpointCalls::SaveBeforeLeaving() {
  const v1::Checkpoints& rules = p_.options.config.checkpoints();
  if (!membership_->draining() || saved_before_leaving_ || p_.jobs.running().exists() || !can_save()) return;
  saved_before_leaving_ = true;
  if (rules.manual() || rules.every_steps() == 0 || !p_.gang.serves() || !IsNew()) return;
  // A request whose other steps are left to the next server: it is computed again from its first one.
  if (IsInsideKept(p_.history.state(), p_.lineage.step())) return;
  const std::string job = p_.jobs.queue().AddFirst({.call = 0, .work = SaveJob{}});
  CHECK_EQ(p_.jobs.queue().TakeNext().value_or(""), job);
  Start(job, SaveJob{});
}

void CheckpointCalls::Start(const std::string& job, const SaveJob& work) {
  const v1::SaveCheckpointRequest& request = work.request;
  tried_at_step_ = p_.lineage.step();
  last_save_ = p_.out.now();
  internal::v1::CheckpointManifest manifest;
  const auto taken = [this](const std::string& name) { return IsTaken(name); };
  manifest.set_name(request.name().empty() ? AutomaticName(p_.lineage.step(), taken) : request.name());
  manifest.set_lineage(p_.lineage.name());
  manifest.set_step(p_.lineage.step());
  manifest.set_weight_version(p_.lineage.weight_version());
  manifest.set_journal_row(p_.history.last_row());
  manifest.set_saved_at_s(absl::ToDoubleSeconds(p_.out.now() - absl::UnixEpoch()));
  manifest.set_pinned(request.pinned());
  *manifest.mutable_config() = p_.gang.config();
  const std::string what = absl::StrCat("checkpoint ", manifest.name());
  const std::string folder_name = absl::StrCat("save-", p_.options.epoch, "-", next_folder_++);
  const std::string folder = TemporaryFolderOf(folder_name);
  p_.jobs.running().BeginCallJob(job, what, SaveSeconds(p_.options.model), std::nullopt, p_.gang.num_ranks());
  p_.save.Begin(
      {.job = job,
       .folder = folder,
       .call = 0,
       .client_state = request.client_state(),
       .manifest = std::move(manifest)},
      p_.gang.num_ranks(),
      JobWatch(absl::StrCat("writing ", what), SaveSeconds(p_.options.model), p_.options.worker_stalled_after));
  p_.out.Add(MakeCheckpointFolderAction{folder_name});
  internal::v1::Save message;
  message.set_id(job);
  message.set_folder(folder);
  for (const Gang::Worker& worker : p_.gang.workers()) p_.out.Send(worker.session, message);
  p_.out.AddReason(absl::StrCat(what, " is staged: step ", p_.lineage.step(), " of lineage ", p_.lineage.name()));
}

// The next job begins once all ranks have staged, or could not.
void CheckpointCalls::OnSaveStaged(uint32_t rank, const internal::v1::SaveStaged& staged) {
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

void CheckpointCalls::OnSaveDone(uint32_t rank, const internal::v1::SaveDone& done) {
  if (const std::optional<std::string> folder = p_.save.AddLateDone(done.id(), rank)) {
    return p_.out.Add(RemoveCheckpointAction{*folder});
  }
  if (!p_.save.Is(done.id()) || !p_.save.AwaitsDone(rank)) {
    return p_.out.AddReason(absl::StrCat("ignored: the end of writing ", WorkerText(done.id())));
  }
  p_.save.AddDone(rank, done, done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus());
  CommitWhenAllEnded();
}

void CheckpointCalls::CommitWhenAllEnded() {
  if (!p_.save.all_ended()) return;
  if (const absl::Status failure = p_.save.failure(); !failure.ok()) {
    p_.out.Add(RemoveCheckpointAction{p_.save.order().folder});
    return Fail(p_.save.End(), failure);
  }
  p_.out.Add(p_.save.Commit());
}

void CheckpointCalls::GiveUpWhenStalled() {
  const std::string problem = p_.save.Problem();
  if (!problem.empty()) Fail(p_.save.GiveUp(), MakeError(Reason::kInternal, problem));
}

void CheckpointCalls::Fail(const CheckpointSave::Order& order, const absl::Status& failure) {
  p_.out.AddReason(absl::StrCat("checkpoint ", order.manifest.name(), " is not saved: ", failure.message()));
  if (order.call != 0) p_.out.Reply(order.call, failure);
}

void CheckpointCalls::OnWritten(const CheckpointWrittenEvent& event) {
  if (!p_.save.commits() || event.id != p_.save.id()) return;  // the server is about to leave
  if (!event.written.ok()) return Fail(p_.save.End(), event.written.status());
  const CheckpointSave::Order order = p_.save.End();
  const KnownCheckpoint& known = *event.written;
  p_.history.SaveCheckpoint(known);
  p_.out.AddReason(absl::StrCat("checkpoint ", known.name(), " is saved: step ", known.step(), " of lineage ",
                                known.lineage(), ", ", known.bytes(), " bytes"));
  if (order.call != 0) p_.out.Reply(order.call, Describe(known));
  DropSurplus();
}

void CheckpointCalls::DropSurplus() {
  const uint32_t keep = std::max<uint32_t>(2, p_.options.config.checkpoints().keep());
  for (const std::string& name : SurplusCheckpoints(p_.history.state(), keep)) {
    if (IsUsed(name)) continue;
    p_.out.Add(RemoveCheckpointAction{name});
    p_.history.DropCheckpoint(name);
    p_.out.AddReason(absl::StrCat("checkpoint ", name, " is removed"));
  }
}

// ------------------------------------------------------------------------------------------------------------ loading

const KnownCheckpoint* CheckpointCalls::Find(CallId call, const std::string& name) const {
  const KnownCheckpoint* known = FindCheckpoint(p_.history.state(), name);
  if (known == nullptr) {
    const absl::Status fields = CheckCheckpointName(name);
    p_.out.Reply(call,
                 fields.ok() ? MakeError(Reason::kNotFound, absl::StrCat("there is no checkpoint ", name)) : fields);
  }
  return known;
}

bool CheckpointCalls::IsUsed(const std::string& name) const {
  return ChooseBase(p_.history.state(), p_.history.replays()).checkpoint == name ||
         (!p_.gang.serves() && p_.base.base().checkpoint == name) || IsReadByKept(p_.history.state(), name) ||
         p_.arrivals.ReadsCheckpoint(name) || p_.jobs.ReadsCheckpoint(name) ||
         std::any_of(readings_.begin(), readings_.end(), [&](const auto& r) { return r.second.name == name; });
}

void CheckpointCalls::OnLoad(const LoadCheckpointEvent& event) {
  const v1::LoadCheckpointRequest& request = event.request;
  const KnownCheckpoint* newest = NewestSound(p_.history.state());
  if (request.name().empty() && newest == nullptr) {
    return p_.out.Reply(event.call, MakeError(Reason::kNotFound, absl::StrCat("lineage ", p_.lineage.name(),
                                                                              " has no checkpoint: save one first")));
  }
  const KnownCheckpoint* known = request.name().empty() ? newest : Find(event.call, request.name());
  if (known == nullptr) return;
  std::optional<std::string> expected;
  if (request.has_expected_lineage()) expected = request.expected_lineage();
  if (absl::Status status = CheckLoad(expected, *known); !status.ok()) return p_.out.Reply(event.call, status);
  if (!known->damage().empty()) return p_.out.Reply(event.call, DamagedError(*known));
  const absl::Status serving = membership_->NotServing();
  if (!serving.ok() && p_.lineage.unusable().empty()) return p_.out.Reply(event.call, serving);
  Read({.purpose = Purpose::kLoad, .call = event.call, .name = known->name(), .expected_lineage = std::move(expected)},
       *known);
}

absl::Status CheckpointCalls::CheckLoad(const std::optional<std::string>& expected,
                                        const KnownCheckpoint& known) const {
  if (!expected || p_.lineage.WentFrom(*expected, known)) return absl::OkStatus();
  return p_.lineage.CheckName(*expected);
}

void CheckpointCalls::OnVerify(const VerifyCheckpointEvent& event) {
  const KnownCheckpoint* known = Find(event.call, event.name);
  if (known != nullptr) Read({.purpose = Purpose::kVerify, .call = event.call, .name = known->name()}, *known);
}

void CheckpointCalls::Read(Reading reading, const KnownCheckpoint& checkpoint) {
  const size_t open = p_.jobs.num_open() + p_.arrivals.size() + readings_.size();
  const absl::Status room = CheckQueue(p_.options.config.limits(), open, p_.jobs.open_bytes() + p_.arrivals.bytes(), 0);
  if (!room.ok()) return p_.out.Reply(reading.call, room);
  const uint64_t id = next_reading_++;
  readings_[id] = std::move(reading);
  p_.out.Add(
      ReadCheckpointAction{.id = id, .name = checkpoint.name(), .manifest_sha256 = checkpoint.manifest_sha256()});
}

void CheckpointCalls::OnGone(CallId call) {
  for (auto& [id, reading] : readings_) {
    if (reading.call != call) continue;
    reading.call = 0;
    p_.out.Add(DropReadingAction{id});
  }
}

void CheckpointCalls::OnRead(const CheckpointReadEvent& event) {
  if (const auto base = p_.base.OnRead(event)) return membership_->OnBaseRead(*base);
  const auto reading = readings_.find(event.id);
  CHECK(reading != readings_.end()) << event.id;
  const Reading ended = std::move(reading->second);
  readings_.erase(reading);
  if (absl::IsCancelled(event.client_state.status())) return;
  const KnownCheckpoint* known = FindCheckpoint(p_.history.state(), ended.name);
  CHECK(known != nullptr) << ended.name << " was removed while it was read";
  const std::string damage(DamageOf(event.client_state.status()).message());
  const bool judged = event.client_state.ok() || !damage.empty();
  if (judged && damage != known->damage()) {
    p_.history.JudgeCheckpoint(ended.name, damage);
    p_.out.AddReason(
        absl::StrCat("checkpoint ", ended.name, damage.empty() ? " is sound again" : " is damaged: ", damage));
  }
  if (ended.call != 0) EndRead(ended, event.client_state);
}

void CheckpointCalls::EndRead(const Reading& reading, const absl::StatusOr<std::string>& client_state) {
  const KnownCheckpoint& known = *FindCheckpoint(p_.history.state(), reading.name);
  if (reading.purpose == Purpose::kVerify) {
    const bool judged = client_state.ok() || !DamageOf(client_state.status()).ok();
    if (judged) return p_.out.Reply(reading.call, Describe(known));
    return p_.out.Reply(reading.call, client_state.status());
  }
  if (!known.damage().empty()) return p_.out.Reply(reading.call, DamagedError(known));
  if (!client_state.ok()) return p_.out.Reply(reading.call, client_state.status());
  LoadJob work = {.name = reading.name, .client_state = *client_state, .expected_lineage = reading.expected_lineage};
  if (membership_->draining()) return p_.out.Reply(reading.call, DrainingError());
  if (!p_.lineage.unusable().empty()) return Load(reading.call, work);  // no job runs, or will
  Arrival arrival;
  arrival.work = std::move(work);
  arrival.senders.push_back({.call = reading.call});
  p_.arrivals.Add(std::move(arrival), {p_.gang.config(), p_.calibration.rates()});
  membership_->AcceptArrivals();
}

void CheckpointCalls::StartLoad(const std::string& job) {
  const CallJob released = p_.jobs.ReleaseCallJob(job);  // first: what goes back fails all that are there
  Load(released.call, std::get<LoadJob>(released.work));
}

void CheckpointCalls::Load(CallId call, const LoadJob& work) {
  const KnownCheckpoint* known = Find(call, work.name);
  if (known == nullptr) return;
  // What others did while it was read, or waited for its turn, stays.
  if (absl::Status status = CheckLoad(work.expected_lineage, *known); !status.ok()) return p_.out.Reply(call, status);
  const bool there =
      p_.lineage.unusable().empty() && known->lineage() == p_.lineage.name() && known->step() == p_.lineage.step();
  const KnownCheckpoint checkpoint = *known;
  if (!there) membership_->GoBack(checkpoint);
  v1::LoadCheckpointResponse response;
  *response.mutable_checkpoint() = Describe(*FindCheckpoint(p_.history.state(), work.name));
  response.set_client_state(work.client_state);
  response.set_lineage(p_.lineage.name());
  response.set_step(p_.lineage.step());
  response.set_weight_version(p_.lineage.weight_version());
  p_.out.Reply(call, std::move(response));
}

// --------------------------------------------------------------------------------------------------------- the others

void CheckpointCalls::OnList(const ListCheckpointsEvent& event) {
  v1::ListCheckpointsResponse response;
  for (const KnownCheckpoint& known : p_.history.state().checkpoints()) *response.add_checkpoints() = Describe(known);
  response.set_base(ChooseBase(p_.history.state(), p_.history.replays()).checkpoint);
  p_.out.Reply(event.call, std::move(response));
}

void CheckpointCalls::OnPin(const PinCheckpointEvent& event) {
  const KnownCheckpoint* known = Find(event.call, event.name);
  if (known == nullptr) return;
  if (known->pinned() != event.pinned) p_.history.PinCheckpoint(event.name, event.pinned);
  p_.out.Reply(event.call, Describe(*FindCheckpoint(p_.history.state(), event.name)));
}

void CheckpointCalls::OnDelete(const DeleteCheckpointEvent& event) {
  if (Find(event.call, event.name) == nullptr) return;
  if (IsUsed(event.name)) {
    return p_.out.Reply(event.call,
                        MakeError(Reason::kCheckpointInUse,
                                  absl::StrCat("checkpoint ", event.name,
                                               " is the one with which recovery would begin, or a request reads it "
                                               "that is open or may be computed again: save another one first")));
  }
  p_.out.Add(RemoveCheckpointAction{event.name});
  p_.history.DropCheckpoint(event.name);
  p_.out.AddReason(absl::StrCat("checkpoint ", event.name, " is removed"));
  p_.out.Reply(event.call, v1::DeleteCheckpointResponse());
}

}  // namespace stemma::server
