// One server and its workers on this machine, run in the foreground: starts them, restarts what died, and workers that
// no longer answer their server, passes signals on, leaves no process behind. Several workers are one gang: it serves
// while all of them do, and the loss of one ends its generation for all. A server that is started again has the
// addresses of before, so that clients find it.
//
// Thread safety: none; call from the main thread, before any other thread exists (it blocks the signals it waits for).
//
//   starting server -> starting workers -> serving <-> server or worker lost (-> restart) ; any -> stopping -> done
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/local/gang_losses.h"
#include "client/cli/local/restart_policy.h"
#include "client/cli/local/worker_process.h"
#include "common/base/line_writer.h"
#include "common/base/logging.h"
#include "common/base/ready_file.h"
#include "common/base/stop_times.h"
#include "common/base/unique_fd.h"
#include "stemma/v1/training.grpc.pb.h"

namespace stemma::cli {

inline constexpr char kDefaultDeviceKind[] = "cpu";

struct LocalOptions {
  std::vector<std::string> server_flags;  // passed to stemma-server as they are
  std::vector<std::string> log_flags;     // of the server too; apart, as they do not say what to run
  std::vector<std::string> worker_flags;
  uint32_t num_workers = 1;                      // as many as the mesh has ranks
  std::string device_kind = kDefaultDeviceKind;  // worker i computes on the i-th device of it
  std::string ready_file;                        // empty: none
  LogOptions log;                                // the children's too
  absl::Duration drain_within = kDrainWithin;    // as the server has it
  bool die_with_parent = false;                  // stops when the process that started this one has ended
};

class LocalRun {
 public:
  explicit LocalRun(LocalOptions options);
  ~LocalRun();

  // Returns when told to stop by SIGINT, SIGTERM or SIGHUP, or by its parent's end (OK; exit code 1 if the server had
  // to be killed, or ended with another exit code than 0), or when the server or a worker cannot go on: exit code 2 if
  // one refused its configuration, 93 if what is kept is damaged, else 1.
  absl::Status Run();

 private:
  absl::Status Start();
  // Writes the workers' secret where it is missing: every process that starts reads it.
  absl::Status EnsureSecret();
  absl::Status WaitForAddress();
  bool IsOrphan() const;
  bool ReadAddresses();
  void MakeWorkers();
  absl::Status StartWorkers();
  absl::Status Serve();           // until a signal or a fault
  void NoteReadiness();           // by the workers' ready files: a gang that serves for an instant has served
  absl::Status HandleChildren();  // reaps whatever ended
  absl::Status HandleServerEnd(int wait_status);
  absl::Status HandleWorkerEnd(size_t worker, int wait_status);
  absl::Status StartDueServer(int elapsed_ms);
  absl::Status StartDueWorkers(int elapsed_ms);
  absl::Status LookAtWorkers(int elapsed_ms);
  std::optional<v1::ServerInfo> AskServer();
  absl::Status Announce();
  void PrintAddress();  // where it is due; what reads it may be slow, or have stopped
  void Say(const std::string& text) const;
  absl::Duration ServerStop() const;  // longer than the server may take to drain
  absl::Status Stop();
  int ReapUntil(pid_t& pid, int& left_ms);

  LocalOptions options_;
  const pid_t parent_;
  std::string scratch_directory_, secret_;
  UniqueFd scratch_lock_;  // of that folder
  std::string address_, worker_address_, ops_address_, metrics_address_;
  std::vector<std::string> server_argv_;
  pid_t server_pid_ = -1;        // -1: not running
  int server_starts_in_ms_ = 0;  // while it does not run
  std::vector<WorkerProcess> workers_;
  bool ready_ = false;  // all workers serve
  bool announced_ = false, printed_ = false;
  LineWriter stdout_;  // must not keep it from its children
  bool stop_requested_ = false;
  double told_s_ = 0;  // when the server was told to stop
  RestartPolicy policy_;
  GangLosses losses_;
  std::optional<ReadyFile> ready_file_;
  std::unique_ptr<v1::TrainingService::Stub> stub_;
};

}  // namespace stemma::cli
