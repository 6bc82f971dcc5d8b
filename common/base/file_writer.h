// A new file written front to back in pieces: durable once Close returned OK, and else removed with its writer, so that
// an error leaves no half of a file behind. Used by what a process writes once: models, traces, secrets.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma {

class FileWriter {
 public:
  // Fails if the file exists. Errors: AlreadyExists, PermissionDenied, NotFound (folder).
  static absl::StatusOr<FileWriter> Create(const std::string& path, mode_t mode = 0644);
  FileWriter(FileWriter&&) = default;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();  // removes the file, unless Close returned OK

  absl::Status Write(const void* data, size_t bytes);
  absl::Status Close();  // fsync and close; no call after it

 private:
  FileWriter(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

}  // namespace stemma
