// One server and one worker on this machine, run in the foreground: starts them, restarts a worker that died or
// that no longer answers its server, passes signals on, leaves no process behind.
//
// Thread safety: none; call from the main thread, before any other thread exists (it blocks the signals it waits for).
//
//   starting server -> starting worker -> serving <-> worker lost (-> restart) ; any -> stopping -> done
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/local/restart_policy.h"
#include "client/cli/local/worker_watch.h"
#include "common/base/logging.h"
#include "common/base/ready_file.h"
#include "common/base/stop_times.h"
#include "stemma/v1/training.grpc.pb.h"

namespace stemma::cli {

struct LocalOptions {
  std::vector<std::string> server_flags;  // passed to stemma-server as they are
  std::vector<std::string> log_flags;     // of the server too; apart, as they do not say what to run
  std::vector<std::string> worker_flags;
  std::string ready_file;                      // empty: none
  LogOptions log;                              // the children's too
  absl::Duration drain_within = kDrainWithin;  // as the server has it
};

class LocalRun {
 public:
  explicit LocalRun(LocalOptions options);
  ~LocalRun();

  // Returns when told to stop by SIGINT, SIGTERM or SIGHUP (OK), or when the server or the worker cannot go on: exit
  // code 2 if one refused its configuration, else 1.
  absl::Status Run();

 private:
  absl::Status Start();
  absl::Status WaitForAddress();
  bool ReadAddresses();
  absl::Status StartWorker();
  absl::Status Serve();           // until a signal or a fault
  absl::Status HandleChildren();  // reaps whatever ended
  absl::Status HandleWorkerEnd(int wait_status);
  absl::Status LookAtWorker(int elapsed_ms);
  std::optional<bool> IsWorkerConnected();
  absl::Status Announce();
  void Say(const std::string& text) const;
  absl::Duration ServerStop() const;  // longer than the server may take to drain
  void Stop();
  void ReapUntil(pid_t& pid, int timeout_ms);

  LocalOptions options_;
  std::string scratch_directory_;
  std::string address_, worker_address_;
  pid_t server_pid_ = -1;  // -1: not running
  pid_t worker_pid_ = -1;
  bool ready_ = false;  // a worker serves
  bool announced_ = false;
  bool stop_requested_ = false;
  int restart_in_ms_ = 0;  // with worker_pid_ == -1
  RestartPolicy policy_;
  WorkerWatch watch_;
  std::optional<ReadyFile> ready_file_;
  std::unique_ptr<v1::TrainingService::Stub> stub_;
};

}  // namespace stemma::cli
