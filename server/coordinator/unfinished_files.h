// What a process that ended left in the data directory: files and folders that have their names when they are whole,
// and one that begins with a point before (TemporaryFile, TemporaryFolder).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace stemma::server {

// Removes what was to become calibration.json, or an export; logs what it was. What cannot be removed stays, and so
// does whatever a user has put beside it. REQUIRES: nobody writes there.
void RemoveUnfinished(const std::string& data_directory);

// Lists what was to become an export, or was one: before the next one begins, for TakeFromItsWriters.
std::vector<std::string> UnfinishedExports(const std::string& data_directory);

// Makes the empty folder of that name beside the exports, and the one of the exports where it is missing, for workers
// to write into. That one may be a link to a folder, as of a larger disk. Errors: those of the disk.
absl::Status MakeExportFolder(const std::string& data_directory, const std::string& name);

// Renames what was to become an export, so that a process that was to write it, and goes on after it was given up,
// finds it no more. Returns where it is now, for RemoveUnfinishedPath, which may take long; empty: it held nothing, and
// is gone.
std::string TakeFromItsWriters(const std::string& path);

// Removes a folder or file that is unfinished, with all that it holds; logs it.
void RemoveUnfinishedPath(const std::string& path);

}  // namespace stemma::server
