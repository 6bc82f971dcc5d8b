// Checkpoints on the disk: <directory>/checkpoints/<name>, a folder with manifest.json, the model's files and optim/.
//
// A folder of that name is whole: it was filled under another name (.tmp-...) by the ranks and this class, read back,
// and renamed. Names are ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$; links are not followed, neither the folder nor a file in
// it. Nothing here keeps state: what there is, is on the disk. Where the path leads to another folder than the one that
// was opened, nothing is written or removed there, or taken for this run's: INTERNAL, which says what to do, as where
// it leads nowhere. Thread safety: calls share only the folder, and may run on several threads; no two at once about
// the same name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/held_folder.h"
#include "common/model/model_config.h"
#include "server/store/checkpoint_folder.h"
#include "stemma/internal/v1/checkpoint.pb.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

inline constexpr uint64_t kManifestBytesMax = 256u << 20;

// Lets a reading go on to its end (GoesOn, server/store/checkpoint_folder.h).
inline bool AlwaysGoesOn(uint64_t) { return true; }

// What a folder holds, by its manifest.
struct StoredCheckpoint {
  internal::v1::CheckpointManifest manifest;  // without its parts
  std::string manifest_sha256;                // of the file's bytes; 64 hexadecimal digits
  uint64_t bytes = 0;                         // of all files, the manifest too
  uint64_t client_state_bytes = 0;
  std::string client_state;  // as it was saved
};

struct ScannedCheckpoints {
  std::vector<StoredCheckpoint> checkpoints;  // by step and then name
  std::vector<std::string> left_out;          // why a folder is no checkpoint at this start, with its path
};

// Returns it as the journal knows it.
internal::v1::KnownCheckpoint KnownOf(const StoredCheckpoint& stored);

class CheckpointStore {
 public:
  // Creates the folder if need be, mode 0755. `sweeps`: removes .tmp-*, which saves and removals that were cut short
  // left, where they can be removed: no other process may use it. Errors: those of the disk (common/base/file.h).
  static absl::StatusOr<CheckpointStore> Open(const std::string& directory, bool sweeps = true);

  // Makes `.tmp-NAME` and optim/ in it, mode 0755, empty: what was there goes. Returns the name of the folder.
  absl::StatusOr<std::string> Begin(const std::string& name) const;
  // Ends a save whose ranks have written what the manifest's parts say: adds the file `client_state` and its part,
  // where it is not empty; checks that the parts cover every byte of every file of the folder once, and nothing else is
  // there; reads all of it back; writes manifest.json; makes all durable; renames the folder to manifest.name. After an
  // error the temporary folder is gone and nothing else changed. The version is this program's. Errors:
  // CORRUPT_CHECKPOINT - the file (and its writer's rank) is not what was written; CHECKPOINT_EXISTS, whose metadata
  // "name" says which; DISK_FULL; LIMIT_EXCEEDED - client_state, or the manifest; InvalidArgument - a name, also of a
  // part's file, which is not client_state either (CheckPartName); Cancelled - `goes_on` said no while it was read
  // back.
  absl::StatusOr<StoredCheckpoint> Commit(const std::string& temporary, internal::v1::CheckpointManifest manifest,
                                          const std::string& client_state, const GoesOn& goes_on = AlwaysGoesOn) const;
  // Drops a save, or removes what Retire renamed. What cannot be removed is logged, and goes with the next Open.
  void Abandon(const std::string& temporary) const;

  // Reads every byte. `manifest_sha256`: as it was saved; empty: whatever the folder says, where only another manifest
  // with a right seal is not seen. Errors: CORRUPT_CHECKPOINT, which names the file, what is wrong with
  // it, and the rank that wrote it; NotFound - there is no such folder; Cancelled - `goes_on` said no, and nothing is
  // known.
  absl::StatusOr<StoredCheckpoint> Verify(const std::string& name, const std::string& manifest_sha256,
                                          const GoesOn& goes_on = AlwaysGoesOn) const;
  // Returns the folders that have a manifest of their name that can be read, and those that have none, or a damaged
  // one; reads nothing else of them: `client_state` is empty, and files may be damaged. What is left out is logged, and
  // so is what is no folder at all.
  // Errors: the file system's, where a folder cannot be read today: it is not known whether a checkpoint is there;
  // FailedPrecondition - a manifest is of another version: left out, its steps would be given up for good.
  absl::StatusOr<ScannedCheckpoints> Scan() const;
  // Returns the names that no new checkpoint can have: of all that is there, checkpoint or not, in no order.
  absl::StatusOr<std::vector<std::string>> Names() const;
  // Compares the config.json of a checkpoint with the model that is trained. Errors: INVALID_REQUEST, which names the
  // first field in which they differ; InvalidArgument without a reason, or CORRUPT_CHECKPOINT - the file is damaged;
  // the file system's.
  absl::Status CheckModel(const std::string& name, const ModelConfig& model) const;
  // Renames it to a temporary name, another than Begin's of the same name, durably: from then on it is no checkpoint.
  // Returns that name, for Abandon. Errors: NotFound; those of the disk, after which it may have either name, and may
  // be retired again.
  absl::StatusOr<std::string> Retire(const std::string& name) const;

 private:
  CheckpointStore(std::string folder, HeldFolder held) : folder_(std::move(folder)), held_(std::move(held)) {}

  std::string folder_;
  HeldFolder held_;
};

}  // namespace stemma::server
