// Sizes as people write them: "20GB", "512 MiB", "1.5g", "1048576". Every unit is a power of 1024, with or without the
// i, on the command line and in run.yaml alike.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace stemma {

// Errors: InvalidArgument with the text and the form.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view text);

}  // namespace stemma
