// The folder in which `stemma local` keeps the workers' secret and the addresses while it runs. Its lock says that the
// run lives: what runs that were killed left is removed by the next one.
#pragma once

#include <string>

#include "common/base/unique_fd.h"

namespace stemma::cli {

inline constexpr char kScratchPrefix[] = "stemma-local-";

// Takes the lock, which ends with the process; none: the folder cannot be opened.
UniqueFd LockScratchFolder(const std::string& path);

// Removes the folders in `root` that are this user's alone, have such a name and that nobody locks.
void SweepScratchFolders(const std::string& root);

}  // namespace stemma::cli
