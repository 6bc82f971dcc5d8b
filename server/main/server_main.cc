// stemma-server: reads its options, serves until SIGTERM, SIGINT or SIGHUP, drains; a second signal, a second or more
// after it, ends it at once.
//
// Exit: 0 clean, 1 fault or a second signal, 2 configuration, or a data directory that someone has to see to, 93 what
// is kept is damaged: starting again does not help, 94 the disk has no room for the journal.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/flag.h"
#include "common/base/heap.h"
#include "common/base/open_ssl.h"
#include "common/base/process.h"
#include "common/base/ready_file.h"
#include "common/base/status_macros.h"
#include "common/base/stop_times.h"
#include "common/base/thread_room.h"
#include "common/base/worker_version.h"
#include "glog/logging.h"
#include "server/coordinator/first_weights.h"
#include "server/coordinator/planner_threads.h"
#include "server/main/rank_meshes.h"
#include "server/main/server_options.h"
#include "server/main/simulate.h"
#include "server/rpc/server.h"

namespace stemma::server {
namespace {

// What is allocated in pieces of at least so many bytes goes back to the system when it is freed. Else what clients
// send in large messages would stay in the process's heap after it was dropped.
constexpr int kReturnedBytes = 256 << 10;

// A server with a few clients runs fewer; those of gRPC grow with the machine.
constexpr size_t kThreads = 32, kThreadsOfProcessor = 3;

// What hangs in a call of the kernel, or of a library, is left behind so long after all that a drain waits for.
constexpr absl::Duration kUnendingAfter = absl::Seconds(20);

// Nothing without a path.
absl::StatusOr<std::optional<ReadyFile>> WriteReadyFile(const std::string& path, const Server& server) {
  if (path.empty()) return std::nullopt;
  std::string text =
      absl::StrCat(server.address(), "\nworkers ", server.worker_address(), "\nops ", server.ops_address(), "\n");
  if (!server.metrics_address().empty()) absl::StrAppend(&text, "metrics ", server.metrics_address(), "\n");
  ASSIGN_OR_RETURN(ReadyFile file, ReadyFile::Write(path, text));
  return std::optional<ReadyFile>(std::move(file));
}

std::string RandomName() {
  std::random_device random;
  return absl::StrFormat("%08x", random());
}

// Refuses a model that is not the one of the checkpoint with which recovery begins: no worker could load that. What
// else may be wrong with the checkpoint is looked at when it is read.
absl::Status CheckModelOfBase(const ServerMainOptions& options, const std::string& resume, const Storage& storage) {
  const std::string base = ChooseFirst(resume, options.config.durability() == v1::REPLAY, storage);
  if (base.empty()) return absl::OkStatus();
  absl::Status same = storage.checkpoints().CheckModel(base, options.model);
  if (HasReason(same, Reason::kInvalidRequest)) return same;
  LOG_IF(INFO, same.ok()) << "the weights are those of checkpoint " << base << "; those in " << options.config.model()
                          << " are not read";
  return absl::OkStatus();
}

ServerOptions ServerOptionsOf(const ServerMainOptions& options, const std::string& resume,
                              std::unique_ptr<Storage> storage) {
  ServerOptions result;
  result.listen = options.listen;
  result.worker_listen = options.worker_listen;
  result.ops_listen = options.ops_listen;
  result.metrics_listen = options.metrics_listen;
  result.worker_secret = options.worker_secret;
  result.tls = options.tls;
  result.reflection = options.reflection;
  result.limits = options.config.limits();
  result.model = options.model;
  result.coordinator.epoch = storage->state().epoch() + 1;
  result.coordinator.journal_bytes = storage->journal_bytes();
  result.coordinator.journal = storage->TakeState();
  result.coordinator.journal_rows = storage->last_row();
  result.coordinator.checkpoints = storage->found();
  result.coordinator.other_folders = storage->other_folders();
  result.coordinator.resume = resume;
  result.coordinator.keeps_files = true;
  result.storage = std::move(storage);
  result.coordinator.lineage_prefix = RandomName();
  result.coordinator.version = STEMMA_VERSION;
  result.coordinator.worker_version = WorkerVersion();
  result.coordinator.data_directory = options.data->path();
  result.coordinator.worker_lost_after = options.worker_lost_after;
  result.coordinator.worker_stalled_after = options.worker_stalled_after;
  result.coordinator.config = options.config;
  result.coordinator.model = options.model;
  return result;
}

int WaitForSignal(const sigset_t& signals) {
  int received = 0;
  CHECK_EQ(sigwait(&signals, &received), 0);
  return received;
}

[[noreturn]] void Leave(int code) {
  google::FlushLogFiles(google::INFO);
  _exit(code);
}

// Ends the process, once it is to stop, at a second signal: whoever sent it does not want to wait. What follows the
// first at once is not a second one. Ends it as well where it does not end by itself within so long. Its thread is
// there from the start: a process that may start none later is ended, too.
class EndingThread {
 public:
  EndingThread(const sigset_t& signals, absl::Duration within) {
    std::thread([signals, within, begun = begun_] {
      begun->AwaitWithin(absl::InfiniteDuration());
      const double told_s = RealClock().MonotonicSeconds();
      while (true) {
        const absl::Duration gone = absl::Seconds(RealClock().MonotonicSeconds() - told_s);
        if (gone >= within) break;
        const timespec left = absl::ToTimespec(within - gone);
        const int received = sigtimedwait(&signals, nullptr, &left);
        if (received <= 0 || RealClock().MonotonicSeconds() < told_s + kSameStopS) continue;
        LOG(WARNING) << "leaving at once: " << strsignal(received);
        Leave(1);
      }
      LOG(ERROR) << "has not ended within " << within << ": leaves all the same; the next start sees to the rest";
      Leave(kFaultExit);
    }).detach();
  }
  void Begin() { begun_->Set(); }

 private:
  const std::shared_ptr<Flag> begun_ = std::make_shared<Flag>();
};

// Ends the process though something has not ended, on the disk unless it is a plan: what was answered is durable, and
// the next start sees to the rest.
[[noreturn]] void LeaveUnended(const std::string& what, bool drained) {
  LOG(WARNING) << "stopped, though " << (what == kPlanningRequest ? "the server" : "the disk of --data")
               << " has not ended " << what << ": the next start sees to it";
  Leave(drained ? 0 : kFaultExit);
}

// Serves until a signal; the ready file is there meanwhile.
absl::Status Serve(ServerMainOptions& options, const sigset_t& signals) {
  RETURN_IF_ERROR(CheckThreadRoom(kThreads + kThreadsOfProcessor * NumProcessors()));
  EndingThread ending(signals, options.drain_within + kCloseWithin + kDiskWithin + kUnendingAfter);
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                   Storage::Open(options.data->path(), options.config.limits().requests_kept()));
  ASSIGN_OR_RETURN(const std::string resume, ChooseResumed(options.resume, *storage));
  RETURN_IF_ERROR(CheckModelOfBase(options, resume, *storage));
  RETURN_IF_ERROR(CheckKeptRequests(options.config.durability() == v1::REPLAY, *storage));
  ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                   Server::Start(ServerOptionsOf(options, resume, std::move(storage)), RealClock()));
  RETURN_IF_ERROR(options.data->SetAddress(server->address()));
  ASSIGN_OR_RETURN(std::optional<ReadyFile> ready_file, WriteReadyFile(options.ready_file, *server));
  LOG(INFO) << "serving " << options.config.model() << " on " << server->address() << ", workers on "
            << server->worker_address() << (options.tls.any() ? ", both by TLS" : "") << ", health on "
            << server->ops_address()
            << (server->metrics_address().empty() ? ""
                                                  : ", metrics on http://" + server->metrics_address() + "/metrics")
            << ", data in " << options.data->path();
  LOG_IF(WARNING, !options.listen.loopback && options.tls.any() && options.tls.ca.empty())
      << "whoever reaches " << server->address() << " may train, load and export: " << kTlsCaOption
      << " lets in those with a certificate alone";
  const int received = WaitForSignal(signals);
  LOG(INFO) << "stopping: " << strsignal(received) << "; what runs has " << options.drain_within
            << " to end, another signal ends at once";
  if (ready_file) ready_file->Remove();
  ending.Begin();
  const bool drained = server->Drain(options.drain_within);
  if (const std::string what = server->Stop(kDiskWithin); !what.empty()) LeaveUnended(what, drained);
  LOG(INFO) << "stopped";
  return absl::OkStatus();
}

// What was read as damaged stays so; what is of another version, not mounted or not writable waits for a person too.
int ExitCodeOf(const absl::Status& status) {
  if (HasReason(status, Reason::kDiskFull)) return kNoRoomExit;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
      return kConfigurationExit;
    case absl::StatusCode::kDataLoss:
      return kDoNotRestartExit;
    default:
      return kFaultExit;
  }
}

int Main(int argc, char** argv) {
  OpenStandardDescriptors();
  KeepOpenSslAtExit();
  if (argc > 1 && std::string_view(argv[1]) == kRankMeshes) return RankMeshesMain(argc - 1, argv + 1);
  if (argc > 1 && std::string_view(argv[1]) == kSimulate) return SimulateMain(argc - 1, argv + 1);
  IgnoreFileSizeSignal();
  ServerMainOptions options;
  int exit_code = 0;
  if (!ReadServerOptions(argc, argv, options, exit_code)) return exit_code;
  if (options.check_config) {
    std::cout << "ok\n";
    return 0;
  }
  RaiseDescriptorLimit();
  mallopt(M_MMAP_THRESHOLD, kReturnedBytes);
  JoinFreedBlocks();
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread: the main thread waits for them
  if (options.die_with_parent) DieWithParent(getppid());
  const absl::Status status = Serve(options, signals);
  if (!status.ok()) Say(kServerProgram, options.log, LogLevel::kError, std::string(status.message()));
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace stemma::server

int main(int argc, char** argv) { return stemma::server::Main(argc, argv); }
