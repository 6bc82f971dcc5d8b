// A folder that appears whole or not at all: filled under a name of its own beside its place, then renamed to it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stemma {

class TemporaryFolder {
 public:
  // Creates `.tmp-NAME-RANDOM` beside `target`, and the folders above: two writers of one name never share one.
  static absl::StatusOr<TemporaryFolder> Create(const std::string& target);
  // Takes the folder `path` beside `target`, which another process made for this one to fill. Errors: NotFound - it is
  // not there, or not any more.
  static absl::StatusOr<TemporaryFolder> Take(const std::string& path, const std::string& target);
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();  // removes it with all that is in it, unless it was committed

  const std::string& path() const { return path_; }
  // Renames it to the target, durably; its files were synced before. Errors: AlreadyExists - something is there, which
  // stays as it is.
  absl::Status Commit();

 private:
  TemporaryFolder(std::string target, std::string path);

  std::string target_, path_;  // path_ empty: committed
};

// Renames a folder to a name where nothing is. Errors: AlreadyExists - something is there; both stay as they are.
absl::Status RenameFolder(const std::string& from, const std::string& to);

// Makes the folder, and those above it that are missing, with the mode that the umask leaves of 0755. Returns 0, or the
// errno of what could not be made.
int MakeFolders(const std::string& path);

}  // namespace stemma
