#include "tests/server/protocol/scenario_checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace stemma::server {
namespace {

std::string Text(const v1::Checkpoint& checkpoint) {
  return absl::StrCat(checkpoint.name(), " step=", checkpoint.step(), " of ", checkpoint.lineage(),
                      " weights=", checkpoint.weights_digest(), checkpoint.pinned() ? " pinned" : "",
                      checkpoint.damage().empty() ? "" : " damaged");
}

std::string NameOf(const Command& command) { return command.words.size() > 2 ? command.words[2] : ""; }

}  // namespace

CheckpointWrittenEvent FakeCheckpoints::Commit(const CommitCheckpointAction& action) {
  if (full_) return {.id = action.id, .written = MakeError(Reason::kDiskFull, "x")};
  const internal::v1::CheckpointManifest& manifest = action.manifest;
  internal::v1::KnownCheckpoint& known = known_[manifest.name()];
  known.set_name(manifest.name());
  known.set_lineage(manifest.lineage());
  known.set_step(manifest.step());
  known.set_weight_version(manifest.weight_version());
  known.set_weights_digest(manifest.weights_digest());
  known.set_dtype(manifest.config().dtype());
  known.set_pinned(manifest.pinned());
  known.set_saved_at_s(manifest.saved_at_s());
  known.set_manifest_sha256(absl::StrCat("sha-", manifest.name()));
  client_states_[manifest.name()] = action.client_state;
  return {.id = action.id, .written = known};
}

std::vector<Event> FakeCheckpoints::Execute(const Action& action) {
  const auto* make = std::get_if<MakeCheckpointFolderAction>(&action);
  const auto* commit = std::get_if<CommitCheckpointAction>(&action);
  const auto* remove = std::get_if<RemoveCheckpointAction>(&action);
  const bool changes = make != nullptr || commit != nullptr || remove != nullptr;
  if (changes && hangs_) return hung_.push_back(action), std::vector<Event>();
  if (make != nullptr) return {CheckpointFolderEvent{.id = make->id, .made = refusal_}};
  if (commit != nullptr) return {Commit(*commit)};
  if (remove != nullptr) return {Remove(*remove)};
  if (const auto* drop = std::get_if<DropReadingAction>(&action); drop != nullptr) {
    if (begun_ || std::erase_if(held_, [&](const ReadCheckpointAction& held) { return held.id == drop->id; }) == 0)
      return {};
    return {CheckpointReadEvent{.id = drop->id, .client_state = absl::CancelledError("x")}};
  }
  const auto* read = std::get_if<ReadCheckpointAction>(&action);
  if (read == nullptr) return {};
  if (!holds_ || read->for_recovery) return {Read(*read)};
  held_.push_back(*read);
  return {};
}

void FakeCheckpoints::AddCopy(const Command& command) {
  internal::v1::KnownCheckpoint& known = known_[command.words.at(1)];
  known.set_name(command.words.at(1));
  known.set_lineage(command.Text("of"));
  known.set_step(command.Get("step", 0));
  known.set_weights_digest(command.Text("weights"));
  known.set_manifest_sha256(absl::StrCat("sha-", known.name()));
}

CheckpointRemovedEvent FakeCheckpoints::Remove(const RemoveCheckpointAction& action) {
  if (!refusal_.ok()) return {.name = action.name, .removed = refusal_};
  const bool there = known_.erase(action.name) > 0;
  return {.name = action.name, .removed = there ? absl::OkStatus() : absl::NotFoundError("x")};
}

CheckpointReadEvent FakeCheckpoints::Read(const ReadCheckpointAction& action) {
  CheckpointReadEvent event = {.id = action.id, .client_state = client_states_[action.name]};
  if (!known_.contains(action.name)) event.client_state = MakeError(Reason::kNotFound, "x");
  if (damaged_.contains(action.name)) event.client_state = MakeError(Reason::kCorruptCheckpoint, "x");
  if (foreign_.contains(action.name)) event.client_state = MakeError(Reason::kInvalidRequest, "x");
  return event;
}

std::optional<std::vector<Event>> FakeCheckpoints::Tell(const Command& command) {
  const std::string& name = command.words.at(0);
  if (name == "readings") {
    begun_ = command.words.at(1) == "begin";
    holds_ = begun_ || command.words.at(1) == "hold";
    if (command.words.at(1) == "end") return EndReadings();
  } else if (name == "disk" && command.words.at(1) == "reads") {
    return std::vector<Event>{CheckpointProgressEvent{}};
  } else if (name == "disk") {
    refusal_ = command.words.at(1) == "refuses" ? MakeError(Reason::kReadOnly, "x") : absl::OkStatus();
    hangs_ = command.words.at(1) == "hangs";
    if (!hangs_) return EndHung();
  } else if (name == "repair") {
    damaged_.erase(command.words.at(1));
  } else if (name == "forget") {
    known_.erase(command.words.at(1));
  } else if (name == "foreign") {
    foreign_.insert(command.words.at(1));
  } else if (name == "copied") {
    AddCopy(command);
  } else if (name == "full") {
    full_ = !command.Has("off");
  } else {
    return std::nullopt;
  }
  return std::vector<Event>();
}

std::vector<Event> FakeCheckpoints::EndReadings() {
  std::vector<Event> ended;
  for (const ReadCheckpointAction& action : std::exchange(held_, {})) ended.push_back(Read(action));
  return ended;
}

std::vector<Event> FakeCheckpoints::EndHung() {
  std::vector<Event> ended;
  for (const Action& action : std::exchange(hung_, {})) {
    for (Event& event : Execute(action)) ended.push_back(std::move(event));
  }
  return ended;
}

std::vector<internal::v1::KnownCheckpoint> FakeCheckpoints::Found() const {
  std::vector<internal::v1::KnownCheckpoint> found;
  for (const auto& [name, known] : known_) found.push_back(known);
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step() < b.step(); });
  return found;
}

std::optional<Event> CheckpointCallOf(const std::string& name, const Command& command) {
  if (name == "save") {
    SaveCheckpointEvent event = {.call = command.Id(1), .request = {}};
    event.request.set_name(NameOf(command));
    event.request.set_client_state(command.Text("state"));
    event.request.set_pinned(command.Has("pinned"));
    if (command.Has("lineage")) event.request.set_expected_lineage(command.options.at("lineage"));
    return event;
  }
  if (name == "load") {
    LoadCheckpointEvent event = {.call = command.Id(1), .request = {}};
    event.request.set_name(NameOf(command));
    if (command.Has("lineage")) event.request.set_expected_lineage(command.options.at("lineage"));
    return event;
  }
  if (name == "checkpoints") return ListCheckpointsEvent{command.Id(1)};
  if (name == "verify") return VerifyCheckpointEvent{command.Id(1), NameOf(command)};
  if (name == "pin") return PinCheckpointEvent{command.Id(1), NameOf(command), true};
  if (name == "unpin") return PinCheckpointEvent{command.Id(1), NameOf(command), false};
  if (name == "delete") return DeleteCheckpointEvent{command.Id(1), NameOf(command)};
  if (name == "delete_export") return DeleteExportEvent{command.Id(1), command.words.at(2)};
  if (name == "export_removed") {
    absl::Status removed;
    if (command.Has("absent")) removed = absl::NotFoundError("no such folder");
    if (command.Has("fail")) removed = absl::InternalError("the disk is broken");
    return ExportRemovedEvent{command.Id(1), command.words.at(2), removed};
  }
  return std::nullopt;
}

std::string CheckpointActionText(const Action& action) {
  if (const auto* make = std::get_if<MakeCheckpointFolderAction>(&action)) return absl::StrCat("make ", make->name);
  if (const auto* commit = std::get_if<CommitCheckpointAction>(&action)) {
    const auto& manifest = commit->manifest;
    std::string text = absl::StrCat("commit ", manifest.name(), " step=", manifest.step(), " of ", manifest.lineage(),
                                    " row=", manifest.journal_row(), " weights=", manifest.weights_digest());
    for (const auto& part : manifest.parts()) absl::StrAppend(&text, " ", part.file(), "@", part.rank());
    return text;
  }
  if (const auto* read = std::get_if<ReadCheckpointAction>(&action)) {
    return absl::StrCat("read ", read->name, " ", read->manifest_sha256);
  }
  if (const auto* remove = std::get_if<RemoveCheckpointAction>(&action)) return absl::StrCat("remove ", remove->name);
  const auto* drop = std::get_if<DropSaveAction>(&action);
  return drop == nullptr ? "" : absl::StrCat("remove ", drop->folder);
}

std::string CheckpointReplyText(const Reply& reply) {
  if (const auto* checkpoint = std::get_if<v1::Checkpoint>(&reply)) return Text(*checkpoint);
  if (const auto* loaded = std::get_if<v1::LoadCheckpointResponse>(&reply)) {
    return absl::StrCat("loaded ", Text(loaded->checkpoint()), " state=", loaded->client_state(),
                        " now step=", loaded->step(), " of ", loaded->lineage());
  }
  if (const auto* list = std::get_if<v1::ListCheckpointsResponse>(&reply)) {
    std::string text = absl::StrCat("checkpoints base=", list->base());
    for (const v1::Checkpoint& checkpoint : list->checkpoints()) absl::StrAppend(&text, " (", Text(checkpoint), ")");
    return text;
  }
  if (std::holds_alternative<v1::DeleteExportResponse>(reply)) return "deleted the export";
  return std::holds_alternative<v1::DeleteCheckpointResponse>(reply) ? "deleted" : "";
}

std::string CheckpointRowText(const internal::v1::JournalRow& row) {
  if (row.has_checkpoint_saved()) {
    const auto& saved = row.checkpoint_saved().checkpoint();
    return absl::StrCat("checkpoint ", saved.name(), " step=", saved.step(), " of ", saved.lineage());
  }
  if (row.has_checkpoint_changed()) {
    const auto& changed = row.checkpoint_changed();
    if (changed.has_loaded_dtype()) {
      return absl::StrCat("checkpoint ", changed.name(), " in ", changed.loaded_dtype(), "=", changed.loaded_digest());
    }
    return absl::StrCat("checkpoint ", changed.name(), changed.has_pinned() ? " pinned=" : " damage=",
                        changed.has_pinned() ? (changed.pinned() ? "yes" : "no") : changed.damage());
  }
  return row.has_checkpoint_dropped() ? absl::StrCat("checkpoint ", row.checkpoint_dropped().name(), " dropped") : "";
}

}  // namespace stemma::server
