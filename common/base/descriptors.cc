#include "common/base/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"

namespace stemma {
namespace {

constexpr int kFirstOwn = STDERR_FILENO + 1;  // below it is what every program is started with

// Returns what is open, the descriptor by which it looks included.
std::vector<int> OpenDescriptors() {
  std::vector<int> open;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    int fd = -1;
    if (absl::SimpleAtoi(it->path().filename().string(), &fd)) open.push_back(fd);
  }
  return open;
}

}  // namespace

DescriptorCount CountDescriptors() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {.limit = std::min<uint64_t>(limit.rlim_cur, 1 << 30),  // may be unlimited
          .open = OpenDescriptors().size()};
}

void OpenStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd < kFirstOwn; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    if (open("/dev/null", O_RDWR) != fd) return;  // it takes the lowest number, unless there is no such device
  }
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void CloseDescriptorsAtExec() {
  if (close_range(kFirstOwn, ~0u, CLOSE_RANGE_CLOEXEC) == 0) return;
  for (const int fd : OpenDescriptors()) {  // an older kernel, or a sandbox that refuses the call
    if (fd >= kFirstOwn) fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace stemma
