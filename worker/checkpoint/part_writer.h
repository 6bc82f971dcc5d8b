// Writes some ranges of a file of which other processes write the others at the same time, and says what it wrote.
// Thread safety: none; one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_runs.h"
#include "common/base/digest.h"
#include "common/base/shared_file.h"
#include "stemma/internal/v1/checkpoint.pb.h"

namespace stemma::worker {

class PartWriter {
 public:
  // Opens folder/name, or makes it. Errors: as of SharedFile::Open.
  static absl::StatusOr<PartWriter> Open(const std::string& folder, const std::string& name, uint32_t rank);

  // Says where the next bytes go. REQUIRES: runs with bytes, which begin at or behind the end of those before; that
  // all bytes of those were appended.
  void Begin(const ByteRuns& runs);
  // Writes the next bytes of the runs. Errors: the file system's; DISK_FULL - the rest of the disk is kept for the
  // journal.
  absl::Status Append(std::string_view bytes);
  // Returns the part once its bytes are on the disk. Errors: the file system's.
  absl::StatusOr<internal::v1::CheckpointPart> Close();

 private:
  explicit PartWriter(SharedFile file) : file_(std::move(file)) {}

  SharedFile file_;
  ByteRuns runs_ = {};     // that are being written
  uint64_t appended_ = 0;  // of their bytes
  Sha256 digest_;
  internal::v1::CheckpointPart part_;
};

}  // namespace stemma::worker
