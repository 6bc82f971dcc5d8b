#include "client/cli/local_run.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/cli/child_process.h"
#include "client/cli/command_status.h"
#include "client/cli/connection.h"
#include "client/cli/shared_options.h"
#include "common/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace stemma {
namespace {

constexpr int kTickMs = 100;         // between looks at what is not ready yet
constexpr int kIdleTickMs = 60'000;  // when all is well only signals wake us
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

void Say(const std::string& text) { std::cerr << "stemma local: " << text << std::endl; }

// Whole or not at all: readers wait for the file to appear.
void WriteWhole(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  std::ofstream(temporary) << text;
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) Say(absl::StrCat("cannot write ", path, ": ", error.message()));
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

LocalRun::LocalRun(LocalOptions options) : options_(std::move(options)) {}

LocalRun::~LocalRun() {
  Stop();
  std::error_code ignored;  // nothing to do about a leftover file
  if (!scratch_directory_.empty()) std::filesystem::remove_all(scratch_directory_, ignored);
  if (announced_ && !options_.ready_file.empty()) std::filesystem::remove(options_.ready_file, ignored);
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
  ASSIGN_OR_RETURN(const std::string server, SiblingExecutable("stemma-server"));
  RETURN_IF_ERROR(SiblingExecutable("stemma-worker").status());
  std::string scratch = absl::StrCat(TemporaryRoot(), "/stemma-local-XXXXXX");
  if (mkdtemp(scratch.data()) == nullptr) return absl::InternalError(absl::StrCat("cannot create ", scratch));
  scratch_directory_ = scratch;
  if (!options_.ready_file.empty()) unlink(options_.ready_file.c_str());
  std::vector<std::string> argv = {server, "--ready-file", scratch_directory_ + "/address"};
  argv.insert(argv.end(), options_.server_flags.begin(), options_.server_flags.end());
  ASSIGN_OR_RETURN(server_pid_, StartChild({.argv = argv}));
  RETURN_IF_ERROR(WaitForAddress());
  return stop_requested_ ? absl::OkStatus() : StartWorker();
}

absl::Status LocalRun::WaitForAddress() {
  for (int waited_ms = 0; waited_ms < kAddressTimeoutMs; waited_ms += kTickMs) {
    address_ = FirstLine(scratch_directory_ + "/address");
    if (!address_.empty()) return absl::OkStatus();
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
  std::vector<std::string> argv = {worker, "--server", address_};
  argv.insert(argv.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  ASSIGN_OR_RETURN(worker_pid_, StartChild({.argv = argv}));
  return absl::OkStatus();
}

absl::Status LocalRun::Serve() {
  while (true) {
    const int signal_number = WaitSignal(ready_ ? kIdleTickMs : kTickMs);
    if (signal_number == SIGCHLD) {
      RETURN_IF_ERROR(HandleChildren());
    } else if (signal_number != 0) {
      Say(absl::StrCat("stopping (", strsignal(signal_number), "); what runs has ",
                       absl::FormatDuration(options_.drain_within), " to end, another signal ends at once"));
      return absl::OkStatus();
    } else if (worker_pid_ == -1) {
      restart_in_ms_ -= kTickMs;
      if (restart_in_ms_ <= 0) RETURN_IF_ERROR(StartWorker());
    } else if (!ready_) {
      PollReadiness();
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
  const int exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
  const RestartDecision decision = policy_.WorkerEnded(exit_code, ExitText(wait_status));
  if (!decision.restart) {
    return exit_code == kConfigurationExit ? UsageError(decision.reason) : absl::InternalError(decision.reason);
  }
  Say(decision.reason);
  restart_in_ms_ = decision.delay_ms;
  return absl::OkStatus();
}

void LocalRun::PollReadiness() {
  if (stub_ == nullptr) {
    stub_ = v1::TrainingService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  grpc::ClientContext context;
  SetTimeout(context, kPollTimeoutS);
  v1::ModelInfo model;
  if (!stub_->GetModel(&context, v1::GetModelRequest(), &model).ok()) return;
  ready_ = model.state() == v1::ModelInfo::IDLE || model.state() == v1::ModelInfo::STEPPING;
  if (!ready_) return;
  policy_.WorkerIsReady();
  if (announced_) {
    Say(absl::StrCat("a new worker serves; lineage ", model.lineage(), ", step ", model.step()));
  } else {
    Announce();
  }
}

void LocalRun::Announce() {
  announced_ = true;
  Say("serving; Ctrl-C stops");
  std::cout << address_ << std::endl;
  if (!options_.ready_file.empty()) WriteWhole(options_.ready_file, address_ + "\n");
}

absl::Duration LocalRun::ServerStop() const { return options_.drain_within + 2 * kCloseWithin + kServerStopSlack; }

// The server first: it may finish a step with its worker.
void LocalRun::Stop() {
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

}  // namespace stemma
