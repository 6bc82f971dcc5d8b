// The folders of the server's directory, and the durability of their entries.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stemma::server {

// Creates the folder and makes its entry in the folder above durable; one that is there is left as it is. Errors:
// InvalidArgument - what is there is not a folder, or is a link; those of mkdir and fsync (common/base/file.h).
absl::Status MakeFolder(const std::string& path, mode_t mode);

// Makes one that only this server's user may enter.
absl::Status MakePrivateFolder(const std::string& path);

// Returns the names in a folder, sorted. Errors: the folder cannot be read.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder);

}  // namespace stemma::server
