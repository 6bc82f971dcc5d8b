// What a process that ended left in a folder of the data directory: files and folders that have their names when they
// are whole, and one that begins with a point before (TemporaryFile, TemporaryFolder).
#pragma once

#include <string>

namespace stemma::server {

// Removes all of it, and logs what it was. What cannot be removed stays. REQUIRES: nobody writes there.
void RemoveUnfinished(const std::string& folder);

}  // namespace stemma::server
