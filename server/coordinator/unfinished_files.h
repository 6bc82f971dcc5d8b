// What a process that ended left in the data directory: files and folders that have their names when they are whole,
// and one that begins with a point before (TemporaryFile, TemporaryFolder).
#pragma once

#include <string>

namespace stemma::server {

// Removes what was to become calibration.json, or an export; logs what it was. What cannot be removed stays, and so
// does whatever a user has put beside it. REQUIRES: nobody writes there.
void RemoveUnfinished(const std::string& data_directory);

// Removes what was to become an export alone.
void RemoveUnfinishedExports(const std::string& data_directory);

}  // namespace stemma::server
