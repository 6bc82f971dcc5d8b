#include "worker/main/session_ready_file.h"

#include <utility>

#include "common/base/status_macros.h"

namespace stemma::worker {

SessionReadyFile::SessionReadyFile(std::string path, std::string content)
    : path_(std::move(path)), content_(std::move(content)) {}

absl::Status SessionReadyFile::Write() {
  if (path_.empty()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  if (ended_) return absl::OkStatus();
  ASSIGN_OR_RETURN(ReadyFile written, ReadyFile::Write(path_, content_));
  file_.emplace(std::move(written));
  return absl::OkStatus();
}

void SessionReadyFile::End() {
  MutexLock lock(&mutex_);
  ended_ = true;
  file_.reset();  // its destructor removes it
}

}  // namespace stemma::worker
