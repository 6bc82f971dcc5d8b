// The folder in which `stemma local` keeps the workers' secret and the addresses while it runs. Its lock says that the
// run lives: what runs that were killed left is removed by the next one.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma::cli {

inline constexpr char kScratchPrefix[] = "stemma-local-";

// Makes one whose name begins so, for this user alone. Errors: a usage error, which says why and what to do.
absl::StatusOr<std::string> MakeScratchFolder(const std::string& root, const std::string& prefix);

// Takes the lock, which ends with the process; none: the folder cannot be opened.
UniqueFd LockScratchFolder(const std::string& path);

// Removes the folders in `root` that are this user's alone, have such a name and that nobody locks.
void SweepScratchFolders(const std::string& root);

}  // namespace stemma::cli
