#include "client/cli/local/worker_process.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "client/cli/local/child_process.h"
#include "common/base/status_macros.h"

namespace stemma::cli {

WorkerProcess::WorkerProcess(std::string name, std::string ready_path, std::vector<std::string> arguments)
    : name_(std::move(name)), ready_path_(std::move(ready_path)), arguments_(std::move(arguments)) {}

absl::Status WorkerProcess::Start() {
  ASSIGN_OR_RETURN(const std::string worker, SiblingExecutable("stemma-worker"));
  std::vector<std::string> argv = {worker, "--ready-file", ready_path_};
  argv.insert(argv.end(), arguments_.begin(), arguments_.end());
  ASSIGN_OR_RETURN(pid_, StartChild({.argv = argv, .ignores_stop = true}));
  of_earlier_server_ = false;
  watch_.Started();
  return absl::OkStatus();
}

bool WorkerProcess::IsDue(int elapsed_ms) {
  if (is_running()) return false;
  start_in_ms_ -= elapsed_ms;
  return start_in_ms_ <= 0;
}

void WorkerProcess::Ended() {
  pid_ = -1;
  unlink(ready_path_.c_str());  // a worker that was killed leaves it
}

bool WorkerProcess::KillIfLost(bool connected, int elapsed_ms) {
  if (!watch_.IsLost(connected, elapsed_ms)) return false;
  kill(pid_, SIGKILL);
  watch_.Started();
  return true;
}

bool WorkerProcess::HasServed() const {
  return is_running() && !of_earlier_server_ && access(ready_path_.c_str(), F_OK) == 0;
}

}  // namespace stemma::cli
