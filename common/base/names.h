// Names that become entries of a folder or stand in messages: what they may hold. Errors: InvalidArgument, with the
// name (shortened) and the rule.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace stemma {

// ^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$ without `..`.
absl::Status CheckRequestId(std::string_view id);

// The same without `/`: one entry of a directory, never a path.
absl::Status CheckFileName(std::string_view name);

// The same, which may be hidden by a point before it, as a folder is that is not whole yet.
absl::Status CheckFolderName(std::string_view name);

}  // namespace stemma
