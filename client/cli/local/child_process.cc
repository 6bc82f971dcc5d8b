#include "client/cli/local/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/process.h"

namespace stemma::cli {
namespace {

constexpr int kExecFailed = 127;

// Between fork and exec only async-signal-safe calls are allowed: gRPC has threads by then.
[[noreturn]] void RunInChild(char* const* argv, const ChildOptions& options, pid_t parent) {
  DieWithParent(parent, SIGKILL);
  setpgid(0, 0);
  for (int signal_number : {SIGTERM, SIGINT}) signal(signal_number, options.ignores_stop ? SIG_IGN : SIG_DFL);
  if (options.ignores_stop) signal(SIGHUP, SIG_IGN);  // else as this process was started: nohup's children ignore it
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
  if (options.stdout_fd != STDOUT_FILENO) dup2(options.stdout_fd, STDOUT_FILENO);
  execv(argv[0], argv);
  _exit(kExecFailed);
}

}  // namespace

absl::StatusOr<pid_t> StartChild(const ChildOptions& options) {
  std::vector<char*> argv;
  for (const std::string& argument : options.argv) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("cannot start ", options.argv[0], ": ", strerror(errno)));
  if (pid == 0) RunInChild(argv.data(), options, parent);
  return pid;
}

std::string ExitText(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("signal ", WTERMSIG(wait_status), " (", strsignal(WTERMSIG(wait_status)), ")");
  }
  return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
}

absl::StatusOr<std::string> SiblingExecutable(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string path = (self.parent_path() / name).string();
  if (error || access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("no executable ", path, ": `", name, "` must lie in the directory of `stemma`"));
  }
  return path;
}

}  // namespace stemma::cli
