// A worker's ready file, there from the engine's Ready until its session's end.
//
// Thread safety: safe. The engine's thread writes the file, the main thread ends it; an engine that has not stopped in
// time may do so at the same moment, or after.
// Always holds: once End has returned there is no file, whatever the engine's thread still does.
#pragma once

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/ready_file.h"

namespace stemma::worker {

class SessionReadyFile {
 public:
  // An empty path: none is wanted.
  SessionReadyFile(std::string path, std::string content);

  // Writes the file; does nothing after End. Errors: as ReadyFile::Write's.
  absl::Status Write();
  // Removes what was written. Idempotent.
  void End();

 private:
  const std::string path_, content_;
  Mutex mutex_;  // held while the disk is used: the file of a Write that has begun is there to be removed
  std::optional<ReadyFile> file_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace stemma::worker
