// The process's calls of fsync and fdatasync, its libraries' included: which files they were about, and one that fails.
#pragma once

#include <string>
#include <vector>

namespace stemma::server {

// Returns the last parts of the files' paths, in the order of the calls since the last TakeSyncedFiles.
std::vector<std::string> TakeSyncedFiles();

// Lets calls about a file whose path ends so fail with this error, and change nothing; 0: none fails.
void FailSyncsOf(const std::string& path_end, int error);

}  // namespace stemma::server
