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

// Starts `argv` and waits until it has ended; kills it where its output cannot be taken. Errors: Internal - it prints
// more than the most; the system's, where it cannot be started or read.
absl::StatusOr<ChildOutput> ReadChild(const std::vector<std::string>& argv);

// Reads what `program` prints into the pipe `fd`, until its other end is closed. Errors: as ReadChild's.
absl::StatusOr<std::string> ReadPrinted(int fd, const std::string& program);

}  // namespace stemma::cli
