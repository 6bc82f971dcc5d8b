// What a child of ours prints on stdout, read to its end: a program beside this one that answers and leaves.
//
// Call from the main thread only (child_process.h).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace stemma::cli {

inline constexpr size_t kChildOutputBytesMax = size_t{64} << 20;

struct ChildOutput {
  std::string text;
  int wait_status = 0;  // how it ended: ExitText() in child_process.h
};

// Starts `argv` and waits until it has ended. Errors: Internal - it cannot be started, or prints more than the most.
absl::StatusOr<ChildOutput> ReadChild(const std::vector<std::string>& argv);

}  // namespace stemma::cli
