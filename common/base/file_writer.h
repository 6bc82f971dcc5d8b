// A file written front to back in pieces, durable once Close returned OK. Model initialisation and export use it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stemma {

class FileWriter {
 public:
  // Fails if the file exists. Errors: AlreadyExists, PermissionDenied, NotFound (folder).
  static absl::StatusOr<FileWriter> Create(const std::string& path, mode_t mode = 0644);
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();

  absl::Status Write(const void* data, size_t bytes);
  absl::Status Close();  // fsync and close

 private:
  FileWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_ = -1;
};

}  // namespace stemma
