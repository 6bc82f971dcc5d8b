// What a process that ended left in the data directory: files and folders that have their names when they are whole,
// and one that begins with a point before (TemporaryFile, TemporaryFolder).
#pragma once

#include <string>
#include <vector>

namespace stemma::server {

// Removes what was to become calibration.json, or an export; logs what it was. What cannot be removed stays, and so
// does whatever a user has put beside it. REQUIRES: nobody writes there.
void RemoveUnfinished(const std::string& data_directory);

// Lists what was to become an export, or was one: before the next one begins, for RemoveUnfinishedPath beside it.
std::vector<std::string> UnfinishedExports(const std::string& data_directory);

// Removes a folder or file that is unfinished, with all that it holds; logs it.
void RemoveUnfinishedPath(const std::string& path);

}  // namespace stemma::server
