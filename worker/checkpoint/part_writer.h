// Writes some ranges of a file of which other processes write the others at the same time, and says what it wrote.
// Thread safety: none; one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "stemma/internal/v1/checkpoint.pb.h"

namespace stemma::worker {

class PartWriter {
 public:
  // Opens folder/name, or makes it; never cuts it, and never follows a link at its last part. Errors: the file
  // system's, DISK_FULL and the like among them; InvalidArgument - it is a link, or no regular file.
  static absl::StatusOr<PartWriter> Open(const std::string& folder, const std::string& name, uint32_t rank);
  PartWriter(PartWriter&& other) noexcept;
  PartWriter& operator=(PartWriter&&) = delete;
  ~PartWriter();

  // `offset` >= the end of what was written before. Errors: the file system's; DISK_FULL - the rest of the disk is kept
  // for the journal.
  absl::Status Write(uint64_t offset, std::string_view bytes);
  // Returns the part once its bytes are on the disk. Errors: the file system's.
  absl::StatusOr<internal::v1::CheckpointPart> Close();

 private:
  PartWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
  uint64_t end_ = 0;  // of what was written
  Sha256 digest_;
  internal::v1::CheckpointPart part_;
};

}  // namespace stemma::worker
