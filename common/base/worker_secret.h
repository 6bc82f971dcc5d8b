// The secret that admits a worker to its server: 256 random bits as text, the same on both sides.
//
// It lies in a file that its owner alone can read, or in the environment; never on a command line, in a log or in an
// error's text.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stemma {

// Where both programs read it when no file is named.
inline constexpr char kWorkerSecretVariable[] = "STEMMA_WORKER_SECRET";

// 64 hex digits from the kernel's random numbers.
std::string NewWorkerSecret();

// 32 to 256 printable characters without spaces. Errors: InvalidArgument, without the text.
absl::Status CheckWorkerSecret(std::string_view secret);

// Returns the secret that a text holds, whose trailing line ends are not part of it: a variable made of a file has them
// too. Errors: CheckWorkerSecret's.
absl::StatusOr<std::string> WorkerSecretOf(std::string_view text);

// Reads a text as WorkerSecretOf does. Errors: InvalidArgument - the file's mode lets group or others in, it belongs
// to another user than this one or root, or its content is no secret; and those of ReadFile.
absl::StatusOr<std::string> ReadWorkerSecret(const std::string& path);

// Creates the file with mode 0600. Errors: AlreadyExists and those of writing.
absl::Status WriteWorkerSecret(const std::string& path, std::string_view secret);

// Takes the same time wherever they differ.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace stemma
