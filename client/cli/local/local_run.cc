#include "client/cli/local/local_run.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/local/child_process.h"
#include "client/cli/local/scratch_folder.h"
#include "client/cli/output/command_status.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/file.h"
#include "common/base/process.h"
#include "common/base/rank_phase.h"
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

sigset_t WaitedSignals() {
  sigset_t set = StopSignals();
  sigaddset(&set, SIGCHLD);
  return set;
}

// The signal that came, or 0 after `timeout_ms`.
int WaitSignal(int timeout_ms) {
  const sigset_t set = WaitedSignals();
  const timespec timeout = {timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000L};
  const int signal_number = sigtimedwait(&set, nullptr, &timeout);
  return signal_number > 0 ? signal_number : 0;
}

std::string SecretPath(const std::string& scratch_directory) { return scratch_directory + "/worker-secret"; }

std::string AddressPath(const std::string& scratch_directory) { return scratch_directory + "/address"; }

// Gives the option this value, whatever it had.
void SetOption(const std::string& name, const std::string& value, std::vector<std::string>& argv) {
  const auto it = std::find(argv.begin(), argv.end(), name);
  if (it == argv.end()) {
    argv.insert(argv.end(), {name, value});
  } else {
    *std::next(it) = value;
  }
}

// Says that a process will not start again: this one ends as it did.
absl::Status FinalError(int exit_code, const std::string& reason) {
  if (exit_code == kConfigurationExit) return UsageError(reason);
  return exit_code == kDoNotRestartExit ? DamageError(reason) : absl::InternalError(reason);
}

// Whether a server that was told to stop has drained. One that the signal itself ended had nothing to drain: it handles
// signals once it begins to serve.
bool EndedAsTold(int wait_status) {
  const sigset_t stops = StopSignals();
  return wait_status == 0 || (WIFSIGNALED(wait_status) && sigismember(&stops, WTERMSIG(wait_status)) == 1);
}

// Returns the rank that process `pid` is at the server; null: the server has no such worker.
const v1::RankInfo* FindRank(const v1::ServerInfo& info, pid_t pid) {
  const auto rank = std::find_if(info.ranks().begin(), info.ranks().end(), [pid](const v1::RankInfo& candidate) {
    return candidate.pid() == static_cast<uint32_t>(pid);
  });
  return rank == info.ranks().end() ? nullptr : &*rank;
}

}  // namespace

LocalRun::LocalRun(LocalOptions options)
    : options_(std::move(options)), parent_(getppid()), stdout_(STDOUT_FILENO), losses_(options_.num_workers) {}

LocalRun::~LocalRun() {
  Stop().IgnoreError();     // nobody is left to be told
  std::error_code ignored;  // nothing to do about a leftover file
  if (!scratch_directory_.empty()) std::filesystem::remove_all(scratch_directory_, ignored);
}

absl::Status LocalRun::Run() {
  IgnorePipeSignal();  // of whoever read what it says
  const sigset_t set = WaitedSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  absl::Status status = Start();
  if (status.ok() && !stop_requested_) status = Serve();
  const absl::Status stopped = Stop();
  return status.ok() ? stopped : status;
}

absl::Status LocalRun::Start() {
  if (!options_.ready_file.empty()) {
    if (const absl::Status status = ReadyFile::Clear(options_.ready_file); !status.ok()) {
      return UsageError(absl::StrCat("--ready-file: ", status.message()));
    }
  }
  ASSIGN_OR_RETURN(const std::string server, SiblingExecutable("stemma-server"));
  RETURN_IF_ERROR(SiblingExecutable("stemma-worker").status());
  SweepScratchFolders(TemporaryRoot());
  ASSIGN_OR_RETURN(scratch_directory_, MakeScratchFolder(TemporaryRoot(), kScratchPrefix));
  secret_ = NewWorkerSecret();
  RETURN_IF_ERROR(EnsureSecret());
  server_argv_ = {server, "--ready-file", AddressPath(scratch_directory_), "--worker-secret-file",
                  SecretPath(scratch_directory_)};
  server_argv_.insert(server_argv_.end(), options_.server_flags.begin(), options_.server_flags.end());
  server_argv_.insert(server_argv_.end(), options_.log_flags.begin(), options_.log_flags.end());
  ASSIGN_OR_RETURN(server_pid_, StartChild({.argv = server_argv_}));
  RETURN_IF_ERROR(WaitForAddress());
  SetOption("--listen", address_, server_argv_);
  SetOption("--worker-listen", worker_address_, server_argv_);
  SetOption("--ops-listen", ops_address_, server_argv_);
  if (!metrics_address_.empty()) SetOption("--metrics-listen", metrics_address_, server_argv_);
  return stop_requested_ ? absl::OkStatus() : StartWorkers();
}

// The folder lies where what is old may be cleaned away; one that another user has put in its place is not ours.
absl::Status LocalRun::EnsureSecret() {
  const std::string path = SecretPath(scratch_directory_);
  if (access(path.c_str(), F_OK) == 0) return absl::OkStatus();
  if (mkdir(scratch_directory_.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return ErrnoStatus("create", scratch_directory_, errno);
  }
  struct stat info;
  if (lstat(scratch_directory_.c_str(), &info) != 0) return ErrnoStatus("stat", scratch_directory_, errno);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(scratch_directory_, " is no folder of this user's alone"));
  }
  scratch_lock_.Reset();  // of a folder that is gone, or of this one, which could not be locked twice
  scratch_lock_ = LockScratchFolder(scratch_directory_);
  return WriteWorkerSecret(path, secret_);
}

bool LocalRun::ReadAddresses() {
  std::ifstream file(AddressPath(scratch_directory_));
  std::string workers, ops, metrics;
  const bool read = std::getline(file, address_) && file >> workers >> worker_address_ >> ops >> ops_address_ &&
                    workers == "workers" && ops == "ops";
  if (read && file >> metrics) file >> metrics_address_;  // where the server was told to serve them
  return read;
}

// The kernel's own notice (PR_SET_PDEATHSIG) comes when the *thread* that started us ends: a Python script may have
// started us in one that ends sooner.
bool LocalRun::IsOrphan() const { return options_.die_with_parent && getppid() != parent_; }

absl::Status LocalRun::WaitForAddress() {
  for (int waited_ms = 0; waited_ms < kAddressTimeoutMs; waited_ms += kTickMs) {
    if (ReadAddresses()) return absl::OkStatus();
    const int signal_number = WaitSignal(kTickMs);
    if (signal_number == SIGCHLD) RETURN_IF_ERROR(HandleChildren());
    if (IsOrphan() || (signal_number != 0 && signal_number != SIGCHLD)) {
      stop_requested_ = true;
      return absl::OkStatus();
    }
  }
  return absl::InternalError("the server did not open its port");
}

void LocalRun::MakeWorkers() {
  for (uint32_t i = 0; i < options_.num_workers; ++i) {
    std::vector<std::string> arguments = {"--server", worker_address_, "--worker-secret-file",
                                          SecretPath(scratch_directory_), "--once"};
    std::string name = "the worker";
    if (options_.num_workers > 1) {
      name = absl::StrCat("worker ", i, " of ", options_.num_workers);
    }
    if (options_.num_workers > 1 || options_.device_kind != kDefaultDeviceKind) {
      arguments.insert(arguments.end(), {"--device", absl::StrCat(options_.device_kind, ":", i)});
    }
    arguments.insert(arguments.end(), options_.worker_flags.begin(), options_.worker_flags.end());
    workers_.emplace_back(std::move(name), absl::StrCat(scratch_directory_, "/worker-", i), std::move(arguments));
  }
}

absl::Status LocalRun::StartWorkers() {
  MakeWorkers();
  for (WorkerProcess& worker : workers_) RETURN_IF_ERROR(worker.Start());
  return absl::OkStatus();
}

absl::Status LocalRun::Serve() {
  while (true) {
    const int tick_ms = ready_ ? kWatchTickMs : kTickMs;
    const int signal_number = WaitSignal(tick_ms);
    if (signal_number == SIGCHLD) {
      RETURN_IF_ERROR(HandleChildren());
    } else if (signal_number != 0 || IsOrphan()) {
      Say(absl::StrCat("stopping (", signal_number != 0 ? strsignal(signal_number) : "the starting process has ended",
                       "); what runs has ", absl::FormatDuration(options_.drain_within),
                       " to end, another signal ends at once"));
      return absl::OkStatus();
    } else {
      NoteReadiness();
      PrintAddress();
      RETURN_IF_ERROR(StartDueServer(tick_ms));
      RETURN_IF_ERROR(StartDueWorkers(tick_ms));
      RETURN_IF_ERROR(LookAtWorkers(tick_ms));
    }
  }
}

void LocalRun::NoteReadiness() {
  if (std::all_of(workers_.begin(), workers_.end(), std::mem_fn(&WorkerProcess::HasServed))) policy_.GangIsReady();
}

absl::Status LocalRun::HandleChildren() {
  NoteReadiness();  // of those that ended too: they leave their ready files
  int wait_status = 0;
  while (true) {
    const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
    if (pid <= 0) return absl::OkStatus();
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (pid == workers_[i].pid()) RETURN_IF_ERROR(HandleWorkerEnd(i, wait_status));
    }
    if (pid != server_pid_) continue;
    server_pid_ = -1;
    RETURN_IF_ERROR(HandleServerEnd(wait_status));
  }
}

// A server that has not served yet is not started again: what keeps it from serving is in its command line.
absl::Status LocalRun::HandleServerEnd(int wait_status) {
  const std::string text = ExitText(wait_status);
  const int exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
  if (workers_.empty() && exit_code == kConfigurationExit) {
    return UsageError(absl::StrCat("the server ended with ", text, ": its configuration is refused, see above"));
  }
  if (workers_.empty()) return FinalError(exit_code, absl::StrCat("the server ended with ", text));
  const RestartDecision decision = policy_.ProcessEnded(exit_code, text, "the server");
  if (!decision.restart) return FinalError(exit_code, decision.reason);
  Say(decision.reason);
  ready_ = false;
  losses_.ServerEnded();
  for (WorkerProcess& worker : workers_) worker.ServerEnded();
  server_starts_in_ms_ = decision.delay_ms;
  return absl::OkStatus();
}

absl::Status LocalRun::StartDueServer(int elapsed_ms) {
  if (server_pid_ != -1) return absl::OkStatus();
  server_starts_in_ms_ -= elapsed_ms;
  if (server_starts_in_ms_ > 0) return absl::OkStatus();
  RETURN_IF_ERROR(EnsureSecret());
  ASSIGN_OR_RETURN(server_pid_, StartChild({.argv = server_argv_}));
  return absl::OkStatus();
}

absl::Status LocalRun::HandleWorkerEnd(size_t worker, int wait_status) {
  workers_[worker].Ended();
  ready_ = false;
  const int exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
  const std::string text = ExitText(wait_status), &name = workers_[worker].name();
  const RestartDecision decision = losses_.Ended(worker) ? policy_.ProcessEnded(exit_code, text, name)
                                                         : policy_.FollowerEnded(exit_code, text, name);
  if (!decision.restart) return FinalError(exit_code, decision.reason);
  Say(decision.reason);
  workers_[worker].StartAfter(decision.delay_ms);
  return absl::OkStatus();
}

absl::Status LocalRun::StartDueWorkers(int elapsed_ms) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].IsDue(elapsed_ms)) continue;
    RETURN_IF_ERROR(EnsureSecret());
    RETURN_IF_ERROR(workers_[i].Start());
    losses_.Started(i);
  }
  return absl::OkStatus();
}

// What serves is for the server to say: a worker that has loaded a model may yet be refused for its weights.
absl::Status LocalRun::LookAtWorkers(int elapsed_ms) {
  const bool none = std::none_of(workers_.begin(), workers_.end(), std::mem_fn(&WorkerProcess::is_running));
  const std::optional<v1::ServerInfo> info = none ? std::nullopt : AskServer();
  if (!info) return absl::OkStatus();
  bool all_serve = true;
  for (WorkerProcess& worker : workers_) {
    const v1::RankInfo* const rank = worker.is_running() ? FindRank(*info, worker.pid()) : nullptr;
    all_serve = all_serve && rank != nullptr && HasModel(rank->phase());
    if (!worker.is_running()) continue;
    const pid_t pid = worker.pid();
    if (!worker.KillIfLost(rank != nullptr, elapsed_ms)) continue;
    Say(absl::StrCat("worker ", pid, " no longer answers its server: it is killed"));
  }
  if (ready_ || !all_serve) return absl::OkStatus();
  ready_ = true;
  policy_.GangIsReady();
  losses_.AllServe();
  if (!announced_) return Announce();
  Say(workers_.size() == 1 ? "a new worker has the model"
                           : absl::StrCat("all ", workers_.size(), " workers have the model again"));
  return absl::OkStatus();
}

// Nothing: the server did not answer.
std::optional<v1::ServerInfo> LocalRun::AskServer() {
  if (stub_ == nullptr) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the server is a process of ours
    stub_ = v1::TrainingService::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }
  grpc::ClientContext context;
  SetTimeout(context, kPollTimeoutS);
  v1::ServerInfo info;
  if (!stub_->GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok()) return std::nullopt;
  return info;
}

absl::Status LocalRun::Announce() {
  if (!options_.ready_file.empty()) {
    ASSIGN_OR_RETURN(ReadyFile file, ReadyFile::Write(options_.ready_file, address_ + "\n"));
    ready_file_.emplace(std::move(file));
  }
  announced_ = true;
  Say("serving; Ctrl-C stops");
  PrintAddress();
  return absl::OkStatus();
}

void LocalRun::PrintAddress() {
  if (!announced_ || printed_) return;
  printed_ = stdout_.Write(address_ + "\n", [](int64_t) { return ""; });
}

absl::Duration LocalRun::ServerStop() const {
  return options_.drain_within + 2 * kCloseWithin + kDiskWithin + kServerStopSlack;
}

void LocalRun::Say(const std::string& text) const { stemma::Say("stemma local", options_.log, LogLevel::kInfo, text); }

// The server first: it may finish a step with its workers. Errors: Aborted - it did not end as it was told to.
absl::Status LocalRun::Stop() {
  if (ready_file_) ready_file_->Remove();
  // Nobody would read of the server's end on our connection, and the server would wait for it for kCloseWithin.
  stub_.reset();
  told_s_ = RealClock().MonotonicSeconds();
  if (server_pid_ != -1) kill(server_pid_, SIGTERM);
  int server_left_ms = static_cast<int>(absl::ToInt64Milliseconds(ServerStop())), workers_left_ms = kWorkerStopMs;
  const int wait_status = ReapUntil(server_pid_, server_left_ms);
  for (const WorkerProcess& worker : workers_) {
    if (worker.is_running()) kill(worker.pid(), SIGKILL);  // the weights are saved, or nobody waits for them
  }
  for (WorkerProcess& worker : workers_) {
    pid_t pid = worker.pid();
    ReapUntil(pid, workers_left_ms);
    worker.Ended();
  }
  if (EndedAsTold(wait_status)) return absl::OkStatus();
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
  return absl::AbortedError(absl::StrCat("the server ",
                                         killed ? "was killed" : absl::StrCat("ended with ", ExitText(wait_status)),
                                         " before it had drained: its last step or checkpoint may be missing"));
}

// Waits for `pid` for at most `left_ms`, which counts down, then kills it; a signal that is of another stop than the
// one that is under way leaves no time. Returns its wait status, 0 where it does not run.
int LocalRun::ReapUntil(pid_t& pid, int& left_ms) {
  int wait_status = 0;
  while (pid != -1) {
    if (waitpid(pid, &wait_status, WNOHANG) == pid) {
      pid = -1;
      break;
    }
    const int signal_number = WaitSignal(kTickMs);
    if (signal_number == 0) left_ms -= kTickMs;
    const bool same_stop = RealClock().MonotonicSeconds() < told_s_ + kSameStopS;
    if (signal_number != 0 && signal_number != SIGCHLD && !same_stop) left_ms = 0;
    if (left_ms > 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, &wait_status, 0);
    pid = -1;
  }
  return wait_status;
}

}  // namespace stemma::cli
