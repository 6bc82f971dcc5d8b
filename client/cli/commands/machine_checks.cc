#include "client/cli/commands/machine_checks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/cli/local/child_process.h"
#include "common/base/human.h"
#include "common/base/system_memory.h"
#include "common/base/unique_fd.h"

namespace stemma::cli {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kOpenFilesMin = 256;

// `--help` starts the process without doing anything: a missing shared library shows here.
Check CheckBinary(const std::string& name) {
  const auto path = SiblingExecutable(name);
  if (!path.ok()) return {name, CheckState::kFailed, std::string(path.status().message())};
  const UniqueFd null_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
  const auto pid = StartChild({.argv = {*path, "--help"}, .stdout_fd = null_fd.get()});
  if (!pid.ok()) return {name, CheckState::kFailed, std::string(pid.status().message())};
  int wait_status = 0;
  waitpid(*pid, &wait_status, 0);
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return {name, CheckState::kOk, *path};
  return {name, CheckState::kFailed,
          absl::StrCat(*path, " --help ended with ", ExitText(wait_status), "; `ldd` shows a library that is missing")};
}

Check CheckPort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool ok = fd.valid() && bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                  listen(fd.get(), 1) == 0;
  if (ok) return {"loopback port", CheckState::kOk, "127.0.0.1 gives free ports"};
  return {"loopback port", CheckState::kFailed, absl::StrCat("cannot listen on 127.0.0.1: ", strerror(errno))};
}

Check CheckMemory() {
  const int64_t bytes = AvailableMemoryBytes();
  if (bytes == 0)
    return {"memory", CheckState::kWarning, "neither /proc/meminfo nor the cgroup tells what is available"};
  return {"memory", bytes < static_cast<int64_t>(kGiB) ? CheckState::kWarning : CheckState::kOk,
          HumanBytes(static_cast<double>(bytes)) + " available"};
}

// The server creates what is missing of the path: the disk is that of the folder above, which is there.
Check CheckDisk(const std::string& directory) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(directory, error);
  while (there.has_relative_path() && !std::filesystem::exists(there, error)) there = there.parent_path();
  struct statvfs info = {};
  if (statvfs(there.c_str(), &info) != 0) {
    return {"disk", CheckState::kFailed, absl::StrCat(directory, ": ", strerror(errno))};
  }
  const uint64_t bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  return {"disk", bytes < kGiB ? CheckState::kWarning : CheckState::kOk,
          absl::StrCat(HumanBytes(static_cast<double>(bytes)), " free in ", directory)};
}

Check CheckOpenFiles() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const bool ok = limit.rlim_cur >= kOpenFilesMin;
  return {"open files", ok ? CheckState::kOk : CheckState::kWarning, absl::StrCat("limit ", limit.rlim_cur)};
}

Check CheckCores() { return {"cores", CheckState::kOk, absl::StrCat(sysconf(_SC_NPROCESSORS_ONLN))}; }

}  // namespace

std::vector<Check> CheckMachine(const std::string& data_directory) {
  return {CheckBinary("stemma-server"),
          CheckBinary("stemma-worker"),
          CheckPort(),
          CheckCores(),
          CheckMemory(),
          CheckDisk(data_directory.empty() ? "." : data_directory),
          CheckOpenFiles()};
}

Record CheckRecord(const Check& check) {
  Record record;
  record["check"] = check.name;
  record["state"] = check.state == CheckState::kOk ? "ok" : check.state == CheckState::kWarning ? "warning" : "FAILED";
  record["detail"] = check.detail;
  for (const auto& [name, number] : check.numbers.items()) record[name] = number;
  return record;
}

}  // namespace stemma::cli
