#include "server/coordinator/storage.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/admission/known_fields.h"
#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/free_bytes.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "server/coordinator/unfinished_files.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/history.h"
#include "server/protocol/journal_checks.h"
#include "server/protocol/journal_fold.h"
#include "server/protocol/spool_names.h"

namespace stemma::server {
namespace {

constexpr uint32_t kServerRank = 0;  // at the failpoints
// What a checkpoint makes useless, gigabytes at most, is gone by then, unless the disk hangs.
constexpr absl::Duration kRemovedWithin = absl::Seconds(30);

static_assert(kRowBytesMax <= kBlobBytesMax, "a row that History may write has to fit");

absl::Status JournalIsOld(const std::string& data_directory, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(
      data_directory, ": the journal is missing or older than the spool: ", why,
      "; what they hold is left as it is: put the newest journal/ back; to begin anew, give the server another --data, "
      "into which checkpoints/ may be moved"));
}

// Returns the error with what it is about before its text.
// `any_of_this`: this version kept some of those requests too, so that neither version reads all of them.
absl::Status KeptByAnother(const std::string& name, bool any_of_this) {
  return absl::FailedPreconditionError(
      absl::StrCat("spool/", name,
                   " of --data holds a request whose steps are still to be computed, kept by another version of "
                   "Stemma, which may count otherwise: ",
                   any_of_this ? "this version kept later ones; put a checkpoint of a later step back into "
                                 "checkpoints/ from a backup"
                               : "start the version that kept it, let it end what is open and save a checkpoint",
                   "; or go on from the newest checkpoint and give up all steps after it: --durability rewind"));
}

// Tells whether the folder may have an entry whose name `counts`: one that is there and cannot be read may.
bool MayHaveEntry(const std::string& folder, bool (*counts)(const std::string& name)) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (counts(it->path().filename().string())) return true;
  }
  return error && error != std::errc::no_such_file_or_directory;
}

// A server makes its journal before its spool, and removes neither. An empty spool alone may be a disk of its own, on
// which no server ever kept anything; beside checkpoints it is what one left that had nothing to keep.
absl::Status CheckNoSpool(const std::string& data_directory) {
  const std::string spool = data_directory + "/spool";
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(spool, error))) return absl::OkStatus();
  const bool kept = MayHaveEntry(spool, [](const std::string& name) { return EpochOfSpoolName(name).has_value(); }) ||
                    MayHaveEntry(data_directory + "/checkpoints", [](const std::string&) { return true; });
  return kept ? JournalIsOld(data_directory, "there is spool/, and no journal/journal.db") : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> Storage::Open(const std::string& data_directory, uint64_t requests_kept) {
  const bool has_journal = Journal::IsIn(data_directory);
  if (!has_journal) RETURN_IF_ERROR(CheckNoSpool(data_directory));
  // Nothing is removed before the journal's lock says that no other server is here, and nothing at all where no server
  // ever was. What one left unfinished goes first: on a full disk the journal, which empties its write-ahead log, finds
  // no other room.
  ASSIGN_OR_RETURN(Database database, Journal::Lock(data_directory));
  if (has_journal) RemoveUnfinished(data_directory);
  ASSIGN_OR_RETURN(Spool spool, Spool::Open(data_directory));
  ASSIGN_OR_RETURN(CheckpointStore checkpoints, CheckpointStore::Open(data_directory, /*sweeps=*/has_journal));
  ASSIGN_OR_RETURN(Journal journal, Journal::Open(data_directory, std::move(database)));
  ASSIGN_OR_RETURN(HeldFolder held, HeldFolder::Open(data_directory));
  std::unique_ptr<Storage> storage(
      new Storage(data_directory, std::move(held), std::move(journal), std::move(spool), std::move(checkpoints)));
  RETURN_IF_ERROR(storage->FoldRows(requests_kept));
  RETURN_IF_ERROR(storage->FindCheckpoints());
  RETURN_IF_ERROR(storage->CheckAnyFound());
  // An old journal is refused by now, whose rows name none of the requests that the newest one needs.
  RETURN_IF_ERROR(storage->CheckSpoolsAge());
  RETURN_IF_ERROR(storage->SweepSpool());
  return storage;
}

absl::Status Storage::FoldRows(uint64_t requests_kept) {
  KnownRequests requests(&state_);
  for (const JournalEntry& entry : journal_.TakeRows()) {
    internal::v1::JournalRow row;
    if (!row.ParseFromString(entry.body)) {
      return MakeError(Reason::kCorruptJournal, absl::StrCat("row ", entry.n, " of the journal in ", data_directory_,
                                                             " is no row of this version"));
    }
    if (row.row_case() != internal::v1::JournalRow::ROW_NOT_SET) {  // else its kind is new, which is said below
      if (const std::string unknown = FirstUnknown(row); !unknown.empty()) {
        return absl::FailedPreconditionError(
            absl::StrCat("row ", entry.n, " of the journal in ", data_directory_, " has ", unknown,
                         ", which this version does not know: start the version that wrote it, or a newer one"));
      }
    }
    if (row.has_snapshot()) snapshot_bytes_ = entry.body.size();
    row_bytes_ = row.has_snapshot() ? 0 : row_bytes_ + entry.body.size();
    if (const absl::Status folded = FoldRow(std::move(row), requests_kept, state_, requests); !folded.ok()) {
      return WithMessage(folded, absl::StrCat("row ", entry.n, " of the journal in ", data_directory_, ": ",
                                              std::string(folded.message())));
    }
  }
  RETURN_IF_ERROR(CheckJournalState(state_));
  last_row_ = journal_.last_n();
  return absl::OkStatus();
}

// Refuses a journal that has not the start of the server by which a request was spooled: it is an old copy, or new, and
// the steps since then are in the spool alone.
absl::Status Storage::CheckSpoolsAge() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, spool_.Names());
  for (const std::string& name : names) {
    const std::optional<uint64_t> epoch = EpochOfSpoolName(name);
    if (!epoch || *epoch <= state_.epoch()) continue;
    return JournalIsOld(data_directory_,
                        absl::StrCat("spool/", name, " is of the server's start ", *epoch,
                                     ", and the last start that the journal knows is ", state_.epoch()));
  }
  return absl::OkStatus();
}

absl::Status Storage::CheckKeptVersions(uint64_t step) const {
  std::string of_another;
  bool any_of_this = false;
  for (const internal::v1::KeptRequest& kept : state_.kept()) {
    if (!kept.open() && LastStep(kept) <= step) continue;
    ASSIGN_OR_RETURN(const bool is_of_another, spool_.IsOfAnotherVersion(kept.spool().name()));
    if (is_of_another && of_another.empty()) of_another = kept.spool().name();
    if (!is_of_another) any_of_this = true;
  }
  return of_another.empty() ? absl::OkStatus() : KeptByAnother(of_another, any_of_this);
}

absl::Status Storage::SweepSpool() const {
  std::set<std::string> names;
  for (const internal::v1::KeptRequest& kept : state_.kept()) names.insert(kept.spool().name());
  ASSIGN_OR_RETURN(const std::vector<std::string> removed, spool_.Sweep(names));
  LOG_IF(INFO, !removed.empty()) << "removed " << removed.size() << " spooled requests that no row names, as "
                                 << removed.front();
  return absl::OkStatus();
}

// A checkpoint of the journal's own lineage was saved after a row that the journal holds, or it is an old copy.
absl::Status Storage::FindCheckpoints() {
  ASSIGN_OR_RETURN(ScannedCheckpoints scanned, checkpoints_.Scan());
  left_out_ = std::move(scanned.left_out);
  for (const StoredCheckpoint& checkpoint : scanned.checkpoints) {
    const internal::v1::CheckpointManifest& manifest = checkpoint.manifest;
    if (manifest.lineage() == state_.lineage() && manifest.journal_row() > last_row_) {
      return MakeError(Reason::kJournalBehind,
                       absl::StrCat("checkpoint ", manifest.name(), " was saved after row ", manifest.journal_row(),
                                    " of the journal, which ends with row ", last_row_,
                                    ": it is an old copy; restore the newest, or give the server another --data"));
    }
    found_.push_back(KnownOf(checkpoint));
  }
  ASSIGN_OR_RETURN(other_folders_, checkpoints_.Names());
  std::erase_if(other_folders_, [&](const std::string& name) {
    return std::any_of(found_.begin(), found_.end(), [&](const auto& known) { return known.name() == name; });
  });
  return absl::OkStatus();
}

// Refuses a folder in which none is left of the checkpoints that the journal's steps begin with: it is not mounted, or
// is another one. What a start without them gives up, no later start has.
absl::Status Storage::CheckAnyFound() const {
  const auto is_found = [&](const internal::v1::KnownCheckpoint& known) {
    return std::any_of(found_.begin(), found_.end(), [&](const auto& found) { return found.name() == known.name(); });
  };
  const auto& known = state_.checkpoints();
  if (known.empty() || std::any_of(known.begin(), known.end(), is_found) || CanRecompute(state_, 0)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(data_directory_, "/checkpoints has none of the checkpoints that the journal knows, as ",
                   known.rbegin()->name(), ": the ", state_.step(),
                   " steps of the lineage would be lost; put them back, or mount the folder; to begin anew, "
                   "give the server another --data"));
}

absl::Status Storage::Write(const JournalAction& action) {
  const google::protobuf::FieldDescriptor* kind =
      internal::v1::JournalRow::descriptor()->FindFieldByNumber(static_cast<int>(action.kind));
  CHECK(kind != nullptr) << action.n;
  if (FailpointFails(absl::StrCat("row.", kind->name(), ".before"), kServerRank))
    return absl::UnavailableError("as told");
  RETURN_IF_ERROR(action.replaces ? journal_.Compact(action.n, action.body)
                                  : journal_.Append(action.n, action.body, action.settles));
  if (action.replaces) snapshot_bytes_ = action.body.size();
  Failpoint(absl::StrCat("row.", kind->name(), ".after"), kServerRank);
  return absl::OkStatus();
}

void Storage::Append(const JournalAction& action) {
  const absl::Status status = Write(action);
  if (status.ok()) return;
  LOG(ERROR) << "leaves: the journal cannot be written: " << status.message();
  google::FlushLogFiles(google::INFO);
  _exit(HasReason(status, Reason::kDiskFull) ? kNoRoomExit : kFaultExit);
}

std::optional<uint64_t> Storage::FreeBytes() const { return stemma::FreeBytes(data_directory_ + "/journal"); }

absl::Status Storage::CheckRoom() {
  const uint64_t removed = removals_.ended();
  absl::Status room = LookForRoom();
  return !room.ok() && removals_.AwaitGone(removed, kRemovedWithin) ? LookForRoom() : room;
}

absl::Status Storage::LookForRoom(uint64_t file_bytes) const {
  const std::optional<uint64_t> free_bytes = FreeBytes();
  // For a moment the next snapshot is on the disk twice (server/protocol/history.cc).
  const uint64_t needed_bytes = std::max(kReservedForRowsBytes, 2 * snapshot_bytes_) + file_bytes;
  if (!free_bytes || *free_bytes >= needed_bytes) return absl::OkStatus();
  return MakeError(
      Reason::kDiskFull,
      absl::StrCat("the disk of ", data_directory_, " has ", *free_bytes, " bytes left, and ", needed_bytes,
                   " are needed, so that there is room for the journal beside this request: make room "
                   "there, then send it again"));
}

absl::StatusOr<internal::v1::SpoolFile> Storage::Keep(const std::string& name, const TrainingRequest& request,
                                                      const RequestPlan& plan, const v1::Mesh& mesh) {
  if (FailpointFails("spool.before", kServerRank)) return ErrnoStatus("write", name, ENOSPC);
  const uint64_t removed = removals_.ended();
  absl::StatusOr<internal::v1::SpoolFile> kept = KeepNow(name, request, plan, mesh);
  const bool again = HasReason(kept.status(), Reason::kDiskFull) && removals_.AwaitGone(removed, kRemovedWithin);
  return again ? KeepNow(name, request, plan, mesh) : kept;
}

absl::StatusOr<internal::v1::SpoolFile> Storage::KeepNow(const std::string& name, const TrainingRequest& request,
                                                         const RequestPlan& plan, const v1::Mesh& mesh) const {
  // Before and after: rows are written beside it.
  RETURN_IF_ERROR(LookForRoom(request.bytes));
  ASSIGN_OR_RETURN(internal::v1::SpoolFile file, spool_.Write(name, request, plan, mesh));
  Failpoint("spool.after", kServerRank);
  absl::Status room = LookForRoom();
  if (room.ok()) return file;
  const absl::Status removed = spool_.Remove(file.name());
  LOG_IF(WARNING, !removed.ok()) << "a spooled request that is refused stays: " << removed.message();
  return room;
}

absl::StatusOr<LoadedRequest> Storage::Load(const internal::v1::SpoolFile& file) const {
  ASSIGN_OR_RETURN(SpooledRequest spooled, spool_.Read(file));
  LoadedRequest loaded = {.request = std::move(spooled.request), .plan = {}, .mesh = spooled.mesh};
  loaded.plan.plan = std::move(spooled.plan);
  loaded.plan.repeats = spooled.repeats;
  loaded.plan.report = std::move(spooled.report);
  AddDecidedNumbers(*loaded.request, std::move(spooled.steps), loaded.plan);
  return loaded;
}

}  // namespace stemma::server
