// Children of `stemma local` and `stemma doctor`: they die with this process, whatever ends it, SIGKILL included.
//
// Call from the main thread only: the kernel ends a child when the thread that started it ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace stemma::cli {

struct ChildOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the executable
  int stdout_fd = 2;              // where its stdout goes; stderr is inherited, stdin is /dev/null
  bool ignores_stop = false;      // SIGTERM, SIGINT and SIGHUP, unless it handles them itself
};

// Starts it in a process group of its own, so that Ctrl-C reaches us alone; with no signal blocked, nor ignored but as
// `options` say; SIGHUP also where this process was started to ignore it.
absl::StatusOr<pid_t> StartChild(const ChildOptions& options);

// "exit code 2", "signal 9 (Killed)".
std::string ExitText(int wait_status);

// An executable that lies beside this one. Errors: NotFound with what to do.
absl::StatusOr<std::string> SiblingExecutable(const std::string& name);

}  // namespace stemma::cli
