// stemma-server: reads its options, serves until SIGTERM or SIGINT, drains; a second signal ends it at once.
//
// Exit: 0 clean, 1 fault or a second signal, 2 configuration.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/descriptors.h"
#include "common/process.h"
#include "glog/logging.h"
#include "server/main/server_options.h"
#include "server/rpc/server.h"

namespace stemma {
namespace {

// Whole or not at all: readers wait for the file to appear.
bool WriteReadyFile(const std::string& path, const std::string& address) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  std::ofstream file(temporary);
  file << address << "\n";
  file.close();
  return file.good() && rename(temporary.c_str(), path.c_str()) == 0;
}

std::string RandomName() {
  std::random_device random;
  return absl::StrFormat("%08x", random());
}

ServerOptions ServerOptionsOf(const ServerMainOptions& options) {
  ServerOptions result;
  result.listen = options.listen;
  result.limits = options.config.limits();
  result.model = options.model;
  result.coordinator.epoch = static_cast<uint64_t>(absl::ToUnixMillis(RealClock().Now()));  // grows with each start
  result.coordinator.lineage_prefix = RandomName();
  result.coordinator.version = STEMMA_VERSION;
  result.coordinator.data_directory = options.data_directory;
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

int Main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  ServerMainOptions options;
  int exit_code = 0;
  if (!ReadServerOptions(argc, argv, options, exit_code)) return exit_code;
  if (options.check_config) {
    std::cout << "ok\n";
    return 0;
  }
  RaiseDescriptorLimit();
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread: the main thread waits for them
  if (options.die_with_parent) DieWithParent(getppid());

  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(ServerOptionsOf(options), RealClock());
  if (!server.ok()) {
    std::cerr << "stemma-server: " << server.status().message() << "\n";
    return 1;
  }
  LOG(INFO) << "serving " << options.config.model() << " on " << (*server)->address();
  if (!options.ready_file.empty() && !WriteReadyFile(options.ready_file, (*server)->address())) {
    std::cerr << "stemma-server: cannot write " << options.ready_file << "\n";
    return 1;
  }
  const int received = WaitForSignal(signals);
  LOG(INFO) << "stopping: " << strsignal(received) << "; what runs has " << options.drain_within
            << " to end, another signal ends at once";
  EndAtNextSignal(signals);
  (*server)->Drain(options.drain_within);
  return 0;
}

}  // namespace
}  // namespace stemma

int main(int argc, char** argv) { return stemma::Main(argc, argv); }
