#include "server/protocol/checkpoint_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "glog/logging.h"
#include "server/protocol/answers.h"

namespace stemma::server {
namespace {

using internal::v1::KnownCheckpoint;

// What a call that writes a row of its own leaves free at the least: less than updates do, for a full disk is when
// checkpoints are deleted.
constexpr uint64_t kCallRowBytes = 1 << 20;

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

bool CheckpointCalls::IsTaken(const std::string& name) const {
  const std::vector<std::string>& others = p_.options.other_folders;
  return FindCheckpoint(p_.history.state(), name) != nullptr || p_.save.Writes(name) || removing_.contains(name) ||
         std::find(others.begin(), others.end(), name) != others.end();
}

// ------------------------------------------------------------------------------------------------------------ loading

const KnownCheckpoint* CheckpointCalls::Find(CallId call, const std::string& name) const {
  const KnownCheckpoint* known = FindCheckpoint(p_.history.state(), name);
  if (known == nullptr) {
    const absl::Status fields = CheckNameField(name);
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
  if (!HasRoom(event.call)) return;
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
  for (auto& [name, removal] : removing_) std::erase(removal.calls, call);
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
        damage.empty() ? LogLevel::kInfo : LogLevel::kWarning,
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
  if (known->pinned() != event.pinned) {
    if (!HasRoom(event.call)) return;
    p_.history.PinCheckpoint(event.name, event.pinned);
  }
  p_.out.Reply(event.call, Describe(*FindCheckpoint(p_.history.state(), event.name)));
}

// The journal does not know one that the disk has not removed yet, or has refused to.
void CheckpointCalls::OnDelete(const DeleteCheckpointEvent& event) {
  if (const auto removing = removing_.find(event.name); removing != removing_.end()) {
    removing->second.calls.push_back(event.call);
    return AskDisk(event.name, removing->second);
  }
  if (Find(event.call, event.name) == nullptr) return;
  if (IsUsed(event.name)) {
    return p_.out.Reply(event.call,
                        MakeError(Reason::kCheckpointInUse,
                                  absl::StrCat("checkpoint ", event.name,
                                               " is the one with which recovery would begin, or a request reads it "
                                               "that is open or may be computed again: save another one first")));
  }
  if (HasRoom(event.call)) Remove(event.name, event.call);
}

// A row that finds no room ends the server: what a client asks for is no reason for that.
bool CheckpointCalls::HasRoom(CallId call) {
  const std::optional<uint64_t> left = p_.out.FreeBytes();
  if (!left || *left >= kCallRowBytes) return true;
  p_.out.Reply(call, MakeError(Reason::kDiskFull,
                               absl::StrCat("the disk of --data has ", *left, " bytes left, and the journal wants ",
                                            kCallRowBytes, " for this: make room there, as by removing exports")));
  return false;
}

// The row comes first: the journal names no checkpoint that is not there.
void CheckpointCalls::Remove(const std::string& name, CallId call) {
  const auto [removing, added] = removing_.try_emplace(name);
  CHECK(added) << name;
  if (call != 0) removing->second.calls.push_back(call);
  p_.history.DropCheckpoint(name);
  AskDisk(name, removing->second);
}

void CheckpointCalls::AskDisk(const std::string& name, Removal& removal) {
  if (std::exchange(removal.under_way, true)) return;
  p_.out.Add(RemoveCheckpointAction{name});
}

void CheckpointCalls::RemoveAgain() {
  for (auto& [name, removal] : removing_) AskDisk(name, removal);
}

// What stays keeps its name from others, and is found by the next server.
void CheckpointCalls::OnRemoved(const CheckpointRemovedEvent& event) {
  Removal& removal = removing_.at(event.name);
  removal.under_way = false;
  const std::vector<CallId> calls = std::exchange(removal.calls, {});
  if (!event.removed.ok() && !absl::IsNotFound(event.removed)) {
    p_.out.AddWarning(absl::StrCat("checkpoint ", event.name,
                                   " stays on the disk, until it is deleted again or another ",
                                   "one is saved: ", event.removed.message()));
    for (const CallId call : calls) p_.out.Reply(call, event.removed);
    return;
  }
  removing_.erase(event.name);
  p_.out.AddReason(absl::StrCat("checkpoint ", event.name, " is removed"));
  for (const CallId call : calls) p_.out.Reply(call, v1::DeleteCheckpointResponse());
}

}  // namespace stemma::server
