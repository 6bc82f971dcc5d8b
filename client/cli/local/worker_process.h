// One worker of `stemma local`: its command line, its process, its ready file, and whether its server still has it.
//
// Thread safety: none; main thread only (see child_process.h).
//
//   not running --(delay)--> running -> ready ; running, ready -> not running
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/local/worker_watch.h"

namespace stemma::cli {

class WorkerProcess {
 public:
  // `arguments`: all that follows the executable but the ready file. `name`: as messages call it.
  WorkerProcess(std::string name, std::string ready_path, std::vector<std::string> arguments);

  // Starts it now. SIGTERM, SIGINT and SIGHUP do not end it: a stop that signals every process must leave the server a
  // worker, or no checkpoint could be saved. Requires: not running.
  absl::Status Start();

  // Makes it due once IsDue has counted `delay_ms`. Requires: not running.
  void StartAfter(int delay_ms) { start_in_ms_ = delay_ms; }

  // Counts the time while it does not run. Returns whether it is to be started.
  bool IsDue(int elapsed_ms);

  // Its process was reaped.
  void Ended();

  // The server was asked after `elapsed_ms` more: does it have this worker? True: it was lost, and is killed.
  bool KillIfLost(bool connected, int elapsed_ms);

  // Its server was reaped.
  void ServerEnded() { of_earlier_server_ = true; }

  // Whether it said to the server that runs now that it has the model. True also from its death by a signal until
  // Ended.
  bool HasServed() const;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  bool is_running() const { return pid_ != -1; }

 private:
  std::string name_, ready_path_;
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
  int start_in_ms_ = 0;
  bool of_earlier_server_ = false;
  WorkerWatch watch_;
};

}  // namespace stemma::cli
