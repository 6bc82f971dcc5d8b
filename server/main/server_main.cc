// stemma-server: reads its options, serves until SIGTERM or SIGINT, drains.
//
// Exit: 0 clean, 1 fault, 2 configuration.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/process.h"
#include "glog/logging.h"
#include "server/main/server_options.h"
#include "server/rpc/server.h"

namespace stemma {
namespace {

constexpr absl::Duration kDrainWithin = absl::Seconds(10);

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
  LOG(INFO) << "stopping: " << strsignal(WaitForSignal(signals));
  (*server)->Drain(kDrainWithin);
  return 0;
}

}  // namespace
}  // namespace stemma

int main(int argc, char** argv) { return stemma::Main(argc, argv); }
