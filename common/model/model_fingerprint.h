// What tells one model's files from another's without reading them whole.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_directory.h"

namespace stemma {

// Returns a digest, 64 hexadecimal digits, of each tensor's name, dtype, shape and of some of its bytes, whichever
// files they are in. Models that were trained apart differ in it; it does not see every change of single weights.
// Errors: those of reading.
absl::StatusOr<std::string> ModelFingerprint(const ModelDirectory& directory);

}  // namespace stemma
