#include "server/store/checkpoint_store.h"

#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/file_writer.h"
#include "common/base/message_sizes.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"
#include "common/base/temporary_folder.h"
#include "common/model/config_difference.h"
#include "common/model/model_directory.h"
#include "glog/logging.h"
#include "server/store/checkpoint_folder.h"
#include "server/store/checkpoint_manifest.h"
#include "server/store/folder.h"

namespace stemma::server {
namespace {

using internal::v1::CheckpointManifest;

constexpr std::string_view kTemporary = kUnfinishedPrefix;
constexpr mode_t kMode = 0755;
constexpr uint32_t kServerRank = 0;  // what the failpoints are passed as, and who wrote client_state

std::string Sha256Of(std::string_view bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.FinishHex();
}

absl::Status CheckTemporary(const std::string& temporary) {
  std::string_view name = temporary;
  if (!absl::StartsWith(temporary, std::string(kTemporary))) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CEscape(temporary), "\" is not the name of a temporary checkpoint"));
  }
  name.remove_prefix(kTemporary.size());
  if (!name.empty() && name.back() == kRetiredSuffix) name.remove_suffix(1);
  return CheckFileName(name);
}

// mkdir's mode is cut by the umask, which is the user's: ranks of the same user write into it.
absl::Status MakeOpenFolder(const std::string& path) {
  if (mkdir(path.c_str(), kMode) != 0) return ErrnoStatus("create", path, errno);
  return chmod(path.c_str(), kMode) == 0 ? absl::OkStatus() : ErrnoStatus("chmod", path, errno);
}

// Checks what the caller says, before anything is opened.
absl::Status CheckSave(const CheckpointManifest& manifest, const std::string& client_state) {
  RETURN_IF_ERROR(CheckFileName(manifest.name()));
  if (client_state.size() > kClientStateBytesMax) {
    return MakeError(Reason::kLimitExceeded, absl::StrCat("client_state has ", client_state.size(),
                                                          " bytes, the limit is ", kClientStateBytesMax));
  }
  for (const internal::v1::CheckpointPart& part : manifest.parts()) {
    RETURN_IF_ERROR(CheckPartName(part.file()));
    if (part.file() == kClientStateFile) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", part.rank(), " says that it wrote ", part.file()));
    }
  }
  return absl::OkStatus();
}

// Adds the server's own file and its part.
absl::Status AddClientState(const std::string& path, const std::string& client_state, CheckpointManifest& manifest) {
  if (client_state.empty()) return absl::OkStatus();
  const std::string file(kClientStateFile);
  absl::StatusOr<FileWriter> writer = FileWriter::Create(absl::StrCat(path, "/", file), 0600);
  if (absl::IsAlreadyExists(writer.status())) {
    return CorruptCheckpoint(path, absl::StrCat(file, ": is there already; no rank may write it"));
  }
  RETURN_IF_ERROR(writer.status());
  RETURN_IF_ERROR(writer->Write(client_state.data(), client_state.size()));
  RETURN_IF_ERROR(writer->Close());
  internal::v1::CheckpointPart& part = *manifest.add_parts();
  part.set_file(file);
  part.add_ranges()->set_bytes(client_state.size());
  part.set_sha256(Sha256Of(client_state));
  part.set_rank(kServerRank);
  return absl::OkStatus();
}

absl::StatusOr<FilesOfParts> CheckedFiles(const CheckpointFolder& folder, const CheckpointParts& parts, Extras extras) {
  absl::StatusOr<FilesOfParts> files = ArrangeParts(parts);
  if (!files.ok()) return CorruptCheckpoint(folder.path(), std::string(files.status().message()));
  ASSIGN_OR_RETURN(const FoundFiles found, folder.FindFiles());
  if (const absl::Status same = CheckFiles(*files, parts, found, extras); !same.ok()) {
    return CorruptCheckpoint(folder.path(), std::string(same.message()));
  }
  return files;
}

StoredCheckpoint Stored(CheckpointManifest manifest, const FilesOfParts& files, std::string_view text) {
  StoredCheckpoint stored;
  stored.manifest_sha256 = Sha256Of(text);
  stored.bytes = text.size();
  for (const auto& [name, file] : files) stored.bytes += file.bytes;
  const auto state = files.find(std::string(kClientStateFile));
  stored.client_state_bytes = state == files.end() ? 0 : state->second.bytes;
  manifest.clear_parts();
  stored.manifest = std::move(manifest);
  return stored;
}

// Returns the manifest that a folder of that name must have. Errors: CORRUPT_CHECKPOINT; FailedPrecondition - it is of
// another version, and so neither damaged nor none.
absl::StatusOr<CheckpointManifest> ManifestOf(const CheckpointFolder& folder, const std::string& name,
                                              std::string_view text) {
  absl::StatusOr<CheckpointManifest> manifest = DecodeManifest(text);
  const std::string file(kManifestFile);
  if (absl::IsFailedPrecondition(manifest.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder.path(), "/", file, ": ", std::string(manifest.status().message())));
  }
  if (!manifest.ok()) {
    return CorruptCheckpoint(folder.path(), absl::StrCat(file, ": ", std::string(manifest.status().message())));
  }
  if (manifest->name() == name) return manifest;
  return CorruptCheckpoint(folder.path(), absl::StrCat(file, ": is the manifest of \"",
                                                       absl::CEscape(Shortened(manifest->name(), 80)), "\""));
}

// Writes the rest of a save whose ranks are done, up to the rename.
absl::StatusOr<StoredCheckpoint> Finish(const std::string& path, CheckpointManifest manifest,
                                        const std::string& client_state, const GoesOn& goes_on) {
  RETURN_IF_ERROR(AddClientState(path, client_state, manifest));
  ASSIGN_OR_RETURN(const CheckpointFolder folder, CheckpointFolder::Open(path));
  ASSIGN_OR_RETURN(const FilesOfParts files, CheckedFiles(folder, manifest.parts(), Extras::kRefused));
  RETURN_IF_ERROR(folder.Sync(files));
  RETURN_IF_ERROR(folder.CheckDigests(files, manifest.parts(), goes_on));
  ASSIGN_OR_RETURN(const std::string text, EncodeManifest(manifest));
  if (FailpointFails("ckpt.before_manifest", kServerRank)) return ErrnoStatus("write", path, EIO);
  RETURN_IF_ERROR(ReplaceFile(absl::StrCat(path, "/", std::string(kManifestFile)), text));
  Failpoint("ckpt.after_manifest", kServerRank);
  RETURN_IF_ERROR(SyncFolder(path));
  StoredCheckpoint stored = Stored(std::move(manifest), files, text);
  stored.client_state = client_state;
  return stored;
}

// Gives a finished save its name. After an error it has the temporary one.
absl::Status Publish(const std::string& parent, const std::string& path, const std::string& name) {
  const std::string target = absl::StrCat(parent, "/", name);
  const absl::Status renamed =
      FailpointFails("ckpt.before_rename", kServerRank) ? ErrnoStatus("rename", path, EIO) : RenameFolder(path, target);
  if (absl::IsAlreadyExists(renamed)) {
    return MakeError(Reason::kCheckpointExists,
                     absl::StrCat("there is a checkpoint \"", name, "\" already; choose another name, or delete it"),
                     {.metadata = {{"name", name}}});
  }
  RETURN_IF_ERROR(renamed);
  Failpoint("ckpt.after_rename", kServerRank);
  absl::Status synced = SyncFolder(parent);
  if (!synced.ok()) LOG_IF(ERROR, rename(target.c_str(), path.c_str()) != 0) << target << " stays, though " << synced;
  return synced;
}

absl::StatusOr<StoredCheckpoint> Save(const std::string& parent, const std::string& path, CheckpointManifest manifest,
                                      const std::string& client_state, const GoesOn& goes_on) {
  RETURN_IF_ERROR(CheckSave(manifest, client_state));
  manifest.set_version(kManifestVersion);
  ASSIGN_OR_RETURN(StoredCheckpoint stored, Finish(path, std::move(manifest), client_state, goes_on));
  RETURN_IF_ERROR(Publish(parent, path, stored.manifest.name()));
  return stored;
}

// Whether a folder is no checkpoint, or a damaged one, and so is at the next start; other errors are the disk's or the
// system's.
bool SaysItIsNone(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInvalidArgument(status);
}

// Whether it is a folder, or a link to one. What cannot be told may be one, and so may what a link leads to that leads
// nowhere: a disk that is not mounted yet.
bool MayBeFolder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  return type == fs::file_type::directory || type == fs::file_type::none || type == fs::file_type::not_found;
}

// Reads a folder's manifest and nothing else.
absl::StatusOr<StoredCheckpoint> ReadManifest(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(const CheckpointFolder folder, CheckpointFolder::Open(path));
  ASSIGN_OR_RETURN(const std::string text, folder.Read(std::string(kManifestFile), kManifestBytesMax));
  ASSIGN_OR_RETURN(CheckpointManifest manifest, ManifestOf(folder, name, text));
  const absl::StatusOr<FilesOfParts> files = ArrangeParts(manifest.parts());
  if (!files.ok()) return CorruptCheckpoint(path, std::string(files.status().message()));
  return Stored(std::move(manifest), *files, text);
}

// Reads every byte of the checkpoint parent/NAME (CheckpointStore::Verify).
absl::StatusOr<StoredCheckpoint> ReadBack(const std::string& parent, const std::string& name,
                                          const std::string& manifest_sha256, const GoesOn& goes_on) {
  const absl::StatusOr<CheckpointFolder> opened = CheckpointFolder::Open(absl::StrCat(parent, "/", name));
  if (absl::IsInvalidArgument(opened.status())) {
    return CorruptCheckpoint(parent, absl::StrCat(name, ": is a link, or not a directory"));
  }
  RETURN_IF_ERROR(opened.status());
  const CheckpointFolder& folder = *opened;
  const std::string manifest_file(kManifestFile), state_file(kClientStateFile);
  ASSIGN_OR_RETURN(const std::string text, folder.Read(manifest_file, kManifestBytesMax));
  if (const std::string digest = Sha256Of(text); !manifest_sha256.empty() && digest != manifest_sha256) {
    return CorruptCheckpoint(folder.path(), absl::StrCat(manifest_file, ": has the digest ", digest, ", not ",
                                                         manifest_sha256, " as when it was saved"));
  }
  ASSIGN_OR_RETURN(CheckpointManifest manifest, ManifestOf(folder, name, text));
  ASSIGN_OR_RETURN(const FilesOfParts files, CheckedFiles(folder, manifest.parts(), Extras::kIgnored));
  RETURN_IF_ERROR(folder.CheckDigests(files, manifest.parts(), goes_on));
  std::string client_state;
  if (files.contains(state_file)) {
    ASSIGN_OR_RETURN(client_state, folder.Read(state_file, kClientStateBytesMax));
  }
  StoredCheckpoint stored = Stored(std::move(manifest), files, text);
  stored.client_state = std::move(client_state);
  return stored;
}

// Checks that the bytes of a file that one rank has written whole are those that it wrote.
absl::Status CheckStays(const std::string& path, const std::string& name, const std::string& file) {
  ASSIGN_OR_RETURN(const CheckpointFolder folder, CheckpointFolder::Open(path));
  ASSIGN_OR_RETURN(const std::string text, folder.Read(std::string(kManifestFile), kManifestBytesMax));
  ASSIGN_OR_RETURN(const CheckpointManifest manifest, ManifestOf(folder, name, text));
  ASSIGN_OR_RETURN(const std::string bytes, folder.Read(file, kManifestBytesMax));
  const std::string digest = Sha256Of(bytes);
  const bool stays = std::any_of(manifest.parts().begin(), manifest.parts().end(),
                                 [&](const auto& part) { return part.file() == file && part.sha256() == digest; });
  return stays ? absl::OkStatus() : CorruptCheckpoint(path, absl::StrCat(file, ": is not what was saved"));
}

}  // namespace

internal::v1::KnownCheckpoint KnownOf(const StoredCheckpoint& stored) {
  const CheckpointManifest& manifest = stored.manifest;
  internal::v1::KnownCheckpoint known;
  known.set_name(manifest.name());
  known.set_lineage(manifest.lineage());
  known.set_step(manifest.step());
  known.set_weight_version(manifest.weight_version());
  known.set_dtype(manifest.config().dtype());
  known.set_weights_digest(manifest.weights_digest());
  known.set_manifest_sha256(stored.manifest_sha256);
  known.set_bytes(stored.bytes);
  known.set_saved_at_s(manifest.saved_at_s());
  known.set_pinned(manifest.pinned());
  known.set_client_state_bytes(stored.client_state_bytes);
  return known;
}

absl::StatusOr<CheckpointStore> CheckpointStore::Open(const std::string& directory, bool sweeps) {
  ASSIGN_OR_RETURN(const std::string root, ResolvePath(directory));
  const std::string folder = absl::StrCat(root, "/checkpoints");
  RETURN_IF_ERROR(MakeFolder(folder, kMode));
  // By the name that was given: a link in it may lead elsewhere later.
  ASSIGN_OR_RETURN(HeldFolder held, HeldFolder::Open(absl::StrCat(directory, "/checkpoints")));
  CheckpointStore store(folder, std::move(held));
  if (!sweeps) return store;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(store.folder_));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, std::string(kTemporary))) continue;
    LogUnfinished(absl::StrCat(store.folder_, "/", name), RemoveTree(absl::StrCat(store.folder_, "/", name)));
  }
  return store;
}

absl::StatusOr<std::string> CheckpointStore::Begin(const std::string& name) const {
  RETURN_IF_ERROR(CheckFileName(name));
  std::string temporary = absl::StrCat(std::string(kTemporary), name);
  const std::string path = absl::StrCat(folder_, "/", temporary);
  if (FailpointFails("ckpt.before_folder", kServerRank)) return ErrnoStatus("create", path, EIO);
  RETURN_IF_ERROR(held_.Check());
  RETURN_IF_ERROR(RemoveTree(path));
  RETURN_IF_ERROR(MakeOpenFolder(path));
  if (absl::Status made = MakeOpenFolder(absl::StrCat(path, "/", std::string(kOptimFolder))); !made.ok()) {
    Abandon(temporary);
    return made;
  }
  return temporary;
}

absl::StatusOr<StoredCheckpoint> CheckpointStore::Commit(const std::string& temporary, CheckpointManifest manifest,
                                                         const std::string& client_state, const GoesOn& goes_on) const {
  RETURN_IF_ERROR(CheckTemporary(temporary));
  const std::string path = absl::StrCat(folder_, "/", temporary);
  RETURN_IF_ERROR(held_.Check());
  absl::StatusOr<StoredCheckpoint> stored = Save(folder_, path, std::move(manifest), client_state, goes_on);
  if (!stored.ok()) Abandon(temporary);
  return stored;
}

void CheckpointStore::Abandon(const std::string& temporary) const {
  absl::Status removed = CheckTemporary(temporary);
  removed.Update(held_.Check());
  if (removed.ok()) removed = RemoveTree(absl::StrCat(folder_, "/", temporary));
  // The next start removes it.
  LOG_IF(WARNING, !removed.ok()) << "a checkpoint's temporary folder stays: " << removed.message();
}

// What another folder holds, which has come to this path, says nothing of this one's checkpoints.
absl::StatusOr<StoredCheckpoint> CheckpointStore::Verify(const std::string& name, const std::string& manifest_sha256,
                                                         const GoesOn& goes_on) const {
  RETURN_IF_ERROR(CheckFileName(name));
  absl::StatusOr<StoredCheckpoint> read = ReadBack(folder_, name, manifest_sha256, goes_on);
  RETURN_IF_ERROR(held_.Check());  // afterwards: the folder may be replaced in the minutes that reading takes
  return read;
}

absl::StatusOr<ScannedCheckpoints> CheckpointStore::Scan() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder_));
  ScannedCheckpoints scanned;
  for (const std::string& name : names) {
    if (!CheckFileName(name).ok()) continue;
    const std::string path = absl::StrCat(folder_, "/", name);
    absl::StatusOr<StoredCheckpoint> stored = ReadManifest(path, name);
    if (stored.ok()) {
      scanned.checkpoints.push_back(*std::move(stored));
    } else if (SaysItIsNone(stored.status())) {
      const std::string why(stored.status().message());
      LOG(WARNING) << "left out of the checkpoints: " << why;
      if (MayBeFolder(path)) scanned.left_out.push_back(why);
    } else {
      return stored.status();
    }
  }
  std::vector<StoredCheckpoint>& checkpoints = scanned.checkpoints;
  std::sort(checkpoints.begin(), checkpoints.end(), [](const StoredCheckpoint& a, const StoredCheckpoint& b) {
    return std::forward_as_tuple(a.manifest.step(), a.manifest.name()) <
           std::forward_as_tuple(b.manifest.step(), b.manifest.name());
  });
  return scanned;
}

absl::StatusOr<std::vector<std::string>> CheckpointStore::Names() const {
  ASSIGN_OR_RETURN(std::vector<std::string> names, NamesIn(folder_));
  std::erase_if(names, [](const std::string& name) { return !CheckFileName(name).ok(); });
  return names;
}

absl::Status CheckpointStore::CheckModel(const std::string& name, const ModelConfig& model) const {
  RETURN_IF_ERROR(CheckFileName(name));
  RETURN_IF_ERROR(held_.Check());
  const std::string path = absl::StrCat(folder_, "/", name), file = "config.json";
  ASSIGN_OR_RETURN(const ModelConfig saved, ReadModelConfig(absl::StrCat(path, "/", file)));
  const std::string difference = FirstDifference(saved, model);
  if (difference.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckStays(path, name, file));  // a byte that was flipped is no other model
  return MakeError(Reason::kInvalidRequest,
                   absl::StrCat("checkpoint ", name, " is of another model than the server's --model: they differ in ",
                                difference, "; give each model a --data of its own"),
                   {.field = "name"});
}

absl::StatusOr<std::string> CheckpointStore::Retire(const std::string& name) const {
  RETURN_IF_ERROR(CheckFileName(name));
  Failpoint("ckpt.before_removal", kServerRank);
  RETURN_IF_ERROR(held_.Check());
  return RetireFolder(folder_, name);
}

}  // namespace stemma::server
