#include "client/cli/local/local_run.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/local/child_process.h"
#include "client/cli/output/command_status.h"
#include "common/base/status_macros.h"
#include "common/base/worker_secret.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace stemma::cli {
namespace {

constexpr int kTickMs = 100;         // between looks at what is not ready yet
constexpr int kWatchTickMs = 1'000;  // between looks at a worker that serves
constexpr int kAddressTimeoutMs = 60'000;
constexpr absl::Duration kServerStopSlack = absl::Seconds(5);  // beyond the longest that it takes
constexpr int kWorkerStopMs = 5'000;
constexpr double kPollTimeoutS = 0.5;
constexpr int kConfigurationExit = 2;

sigset_t WaitedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal_number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal_number);
  return set;
}

// The signal that came, or 0 after `timeout_ms`.
int WaitSignal(int timeout_ms) {
  const sigset_t set = WaitedSignals();
  const timespec timeout = {timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000L};
  const int signal_number = sigtimedwait(&set, nullptr, &timeout);
  return signal_number > 0 ? signal_number : 0;
}

std::string WorkerReadyPath(const std::string& scratch_directory) { return scratch_directory + "/worker"; }

std::string SecretPath(const std::string& scratch_directory) { return scratch_directory + "/worker-secret"; }

}  // namespace

LocalRun::LocalRun(LocalOptions options) : options_(std::move(options)) {}

LocalRun::~LocalRun() {
  Stop();
  std::error_code ignored;  // nothing to do about a leftover file
  if (!scratch_directory_.empty()) std::filesystem::remove_all(scratch_directory_, ignored);
}

absl::Status LocalRun::Run() {
  const sigset_t set = WaitedSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  absl::Status status = Start();
  if (status.ok() && !stop_requested_) status = Serve();
  Stop();
  return status;
}

absl::Status LocalRun::Start() {
  if (!options_.ready_file.empty()) {
    if (const absl::Status status = ReadyFile::Check(options_.ready_file); !status.ok()) {
      return UsageError(absl::StrCat("--ready-file: ", status.message()));
    }
  }
  ASSIGN_OR_RETURN(const std::string server, SiblingExecutable("stemma-server"));
  RETURN_IF_ERROR(SiblingExecutable("stemma-worker").status());
  std::string scratch = absl::StrCat(TemporaryRoot(), "/stemma-local-XXXXXX");
  if (mkdtemp(scratch.data()) == nullptr) return absl::InternalError(absl::StrCat("cannot create ", scratch));
  scratch_directory_ = scratch;
  RETURN_IF_ERROR(WriteWorkerSecret(SecretPath(scratch_directory_), NewWorkerSecret()));
  std::vector<std::string> argv = {server, "--ready-file", scratch_directory_ + "/address", "--worker-secret-file",
                                   SecretPath(scratch_directory_)};
  argv.insert(argv.end(), options_.server_flags.begin(), options_.server_flags.end());
  argv.insert(argv.end(), options_.log_flags.begin(), options_.log_flags.end());
  ASSIGN_OR_RETURN(server_pid_, StartChild({.argv = argv}));
  RETURN_IF_ERROR(WaitForAddress());
  return stop_requested_ ? absl::OkStatus() : StartWorker();
}

bool LocalRun::ReadAddresses() {
  std::ifstream file(scratch_directory_ + "/address");
  std::string word;
  return std::getline(file, address_) && file >> word >> worker_address_ && word == "workers";
}

absl::Status LocalRun::WaitForAddress() {
  for (int waited_ms = 0; waited_ms < kAddressTimeoutMs; waited_ms += kTickMs) {
    if (ReadAddresses()) return absl::OkStatus();
    const int signal_number = WaitSignal(kTickMs);
    if (signal_number == SIGCHLD) RETURN_IF_ERROR(HandleChildren());
    if (signal_number != 0 && signal_number != SIGCHLD) {
      stop_requested_ = true;
      return absl::OkStatus();
    }
  }
  return absl::InternalError("the server did not open its port");
}

absl::Status LocalRun::StartWorker() {
  ASSIGN_OR_RETURN(const std::string worker, SiblingExecutable("stemma-worker"));
  std::vector<std::string> argv = {worker,
                                   "--server",
                                   worker_address_,
                                   "--worker-secret-file",
                                   SecretPath(scratch_directory_),
                                   "--ready-file",
                                   WorkerReadyPath(scratch_directory_),
                                   "--once"};
  argv.insert(argv.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  ASSIGN_OR_RETURN(worker_pid_, StartChild({.argv = argv}));
  watch_.Started();
  return absl::OkStatus();
}

absl::Status LocalRun::Serve() {
  while (true) {
    const int tick_ms = ready_ ? kWatchTickMs : kTickMs;
    const int signal_number = WaitSignal(tick_ms);
    if (signal_number == SIGCHLD) {
      RETURN_IF_ERROR(HandleChildren());
    } else if (signal_number != 0) {
      Say(absl::StrCat("stopping (", strsignal(signal_number), "); what runs has ",
                       absl::FormatDuration(options_.drain_within), " to end, another signal ends at once"));
      return absl::OkStatus();
    } else if (worker_pid_ == -1) {
      restart_in_ms_ -= tick_ms;
      if (restart_in_ms_ <= 0) RETURN_IF_ERROR(StartWorker());
    } else {
      RETURN_IF_ERROR(LookAtWorker(tick_ms));
    }
  }
}

absl::Status LocalRun::HandleChildren() {
  int wait_status = 0;
  while (true) {
    const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
    if (pid <= 0) return absl::OkStatus();
    if (pid == worker_pid_) RETURN_IF_ERROR(HandleWorkerEnd(wait_status));
    if (pid != server_pid_) continue;
    server_pid_ = -1;
    const std::string text = absl::StrCat("the server ended with ", ExitText(wait_status));
    const bool refused = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kConfigurationExit;
    return refused ? UsageError(absl::StrCat(text, ": its configuration is refused, see above"))
                   : absl::InternalError(text);
  }
}

absl::Status LocalRun::HandleWorkerEnd(int wait_status) {
  worker_pid_ = -1;
  ready_ = false;
  unlink(WorkerReadyPath(scratch_directory_).c_str());  // a worker that was killed leaves it
  const int exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
  const RestartDecision decision = policy_.WorkerEnded(exit_code, ExitText(wait_status));
  if (!decision.restart) {
    return exit_code == kConfigurationExit ? UsageError(decision.reason) : absl::InternalError(decision.reason);
  }
  Say(decision.reason);
  restart_in_ms_ = decision.delay_ms;
  return absl::OkStatus();
}

// Ready is what our worker says of itself; lost is what the server says of it.
absl::Status LocalRun::LookAtWorker(int elapsed_ms) {
  const std::optional<bool> connected = IsWorkerConnected();
  if (connected && watch_.IsLost(*connected, elapsed_ms)) {
    Say(absl::StrCat("worker ", worker_pid_, " no longer answers its server: it is killed"));
    kill(worker_pid_, SIGKILL);
    watch_.Started();
    return absl::OkStatus();
  }
  if (ready_ || !connected.value_or(false) || access(WorkerReadyPath(scratch_directory_).c_str(), F_OK) != 0) {
    return absl::OkStatus();
  }
  ready_ = true;
  policy_.WorkerIsReady();
  if (!announced_) return Announce();
  Say("a new worker serves");
  return absl::OkStatus();
}

// Nothing: the server did not answer.
std::optional<bool> LocalRun::IsWorkerConnected() {
  if (stub_ == nullptr) {
    stub_ = v1::TrainingService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  grpc::ClientContext context;
  SetTimeout(context, kPollTimeoutS);
  v1::ServerInfo info;
  if (!stub_->GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok()) return std::nullopt;
  return info.workers_connected() > 0;
}

absl::Status LocalRun::Announce() {
  if (!options_.ready_file.empty()) {
    ASSIGN_OR_RETURN(ReadyFile file, ReadyFile::Write(options_.ready_file, address_ + "\n"));
    ready_file_.emplace(std::move(file));
  }
  announced_ = true;
  Say("serving; Ctrl-C stops");
  std::cout << address_ << std::endl;
  return absl::OkStatus();
}

absl::Duration LocalRun::ServerStop() const { return options_.drain_within + 2 * kCloseWithin + kServerStopSlack; }

void LocalRun::Say(const std::string& text) const { stemma::Say("stemma local", options_.log, LogLevel::kInfo, text); }

// The server first: it may finish a step with its worker.
void LocalRun::Stop() {
  if (ready_file_) ready_file_->Remove();
  if (server_pid_ != -1) kill(server_pid_, SIGTERM);
  ReapUntil(server_pid_, static_cast<int>(absl::ToInt64Milliseconds(ServerStop())));
  if (worker_pid_ != -1) kill(worker_pid_, SIGTERM);
  ReapUntil(worker_pid_, kWorkerStopMs);
}

// Waits for `pid`, then kills it; a second SIGINT or SIGTERM kills it at once.
void LocalRun::ReapUntil(pid_t& pid, int timeout_ms) {
  while (pid != -1) {
    int wait_status = 0;
    if (waitpid(pid, &wait_status, WNOHANG) == pid) {
      pid = -1;
      return;
    }
    const int signal_number = WaitSignal(kTickMs);
    timeout_ms -= kTickMs;
    if (timeout_ms > 0 && (signal_number == 0 || signal_number == SIGCHLD)) continue;
    kill(pid, SIGKILL);
    waitpid(pid, &wait_status, 0);
    pid = -1;
  }
}

}  // namespace stemma::cli
