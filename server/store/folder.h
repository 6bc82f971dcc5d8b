// The folders of the server's directory, and the durability of their entries.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
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

// What the names of folders begin with that are not whole, or not any more; and what they end with where whoever had
// the name was removed. No name of a checkpoint or an export holds it: one that is written and one that is removed
// never share a folder.
inline constexpr std::string_view kUnfinishedPrefix = ".tmp-";
inline constexpr char kRetiredSuffix = '~';

// Renames the folder parent/NAME to a temporary name, durably: from then on nothing has the name. Returns the temporary
// one, for RemoveTree. REQUIRES: a name (common/base/names.h). Errors: NotFound - it is not there, or no folder; those
// of the disk, after which it may have either name, and may be retired again.
absl::StatusOr<std::string> RetireFolder(const std::string& parent, const std::string& name);

// Removes a file, or a folder with all that it holds; links go, not what they lead to. OK where nothing is there.
// Errors: the file system's; some of it may be gone.
absl::Status RemoveTree(const std::string& path);

// Says what became of a path that a process that ended left unfinished, and that was to be removed.
void LogUnfinished(const std::string& path, const absl::Status& removed);

}  // namespace stemma::server
