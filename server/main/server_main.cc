// stemma-server: reads its options, serves until SIGTERM or SIGINT, drains; a second signal ends it at once.
//
// Exit: 0 clean, 1 fault or a second signal, 2 configuration.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/base/process.h"
#include "common/base/ready_file.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "server/main/server_options.h"
#include "server/rpc/server.h"

namespace stemma::server {
namespace {

// What is allocated in pieces of at least so many bytes goes back to the system when it is freed. Else what clients
// send in large messages would stay in the process's heap after it was dropped.
constexpr int kReturnedBytes = 256 << 10;

// Nothing without a path.
absl::StatusOr<std::optional<ReadyFile>> WriteReadyFile(const std::string& path, const Server& server) {
  if (path.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(ReadyFile file,
                   ReadyFile::Write(path, absl::StrCat(server.address(), "\nworkers ", server.worker_address(),
                                                       "\nops ", server.ops_address(), "\n")));
  return std::optional<ReadyFile>(std::move(file));
}

std::string RandomName() {
  std::random_device random;
  return absl::StrFormat("%08x", random());
}

ServerOptions ServerOptionsOf(const ServerMainOptions& options) {
  ServerOptions result;
  result.listen = options.listen;
  result.worker_listen = options.worker_listen;
  result.ops_listen = options.ops_listen;
  result.worker_secret = options.worker_secret;
  result.limits = options.config.limits();
  result.model = options.model;
  result.coordinator.epoch = static_cast<uint64_t>(absl::ToUnixMillis(RealClock().Now()));  // grows with each start
  result.coordinator.lineage_prefix = RandomName();
  result.coordinator.version = STEMMA_VERSION;
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

// A second signal while the server drains: whoever sent it does not want to wait.
void EndAtNextSignal(const sigset_t& signals) {
  std::thread([signals] {
    const int received = WaitForSignal(signals);
    LOG(WARNING) << "leaving at once: " << strsignal(received);
    google::FlushLogFiles(google::INFO);
    _exit(1);
  }).detach();
}

// Serves until a signal; the ready file is there meanwhile.
absl::Status Serve(ServerMainOptions& options, const sigset_t& signals) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Start(ServerOptionsOf(options), RealClock()));
  RETURN_IF_ERROR(options.data->SetAddress(server->address()));
  ASSIGN_OR_RETURN(std::optional<ReadyFile> ready_file, WriteReadyFile(options.ready_file, *server));
  LOG(INFO) << "serving " << options.config.model() << " on " << server->address() << ", workers on "
            << server->worker_address() << ", health on " << server->ops_address() << ", data in "
            << options.data->path();
  const int received = WaitForSignal(signals);
  LOG(INFO) << "stopping: " << strsignal(received) << "; what runs has " << options.drain_within
            << " to end, another signal ends at once";
  if (ready_file) ready_file->Remove();
  EndAtNextSignal(signals);
  server->Drain(options.drain_within);
  LOG(INFO) << "stopped";
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
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
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread: the main thread waits for them
  if (options.die_with_parent) DieWithParent(getppid());
  const absl::Status status = Serve(options, signals);
  if (status.ok()) return 0;
  Say(kServerProgram, options.log, LogLevel::kError, std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace stemma::server

int main(int argc, char** argv) { return stemma::server::Main(argc, argv); }
