#include "tests/server/store/sync_calls.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace stemma::server {
namespace {

std::vector<std::string>& Synced() {
  static auto& synced = *new std::vector<std::string>;
  return synced;
}

std::string& FailingPathEnd() {
  static auto& path_end = *new std::string;
  return path_end;
}

int failing_error = 0;

int Sync(long call, int fd) {
  const std::string path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd)).string();
  Synced().push_back(std::filesystem::path(path).filename().string());
  if (failing_error == 0 || !absl::EndsWith(path, FailingPathEnd())) return static_cast<int>(syscall(call, fd));
  errno = failing_error;
  return -1;
}

}  // namespace

std::vector<std::string> TakeSyncedFiles() { return std::exchange(Synced(), {}); }

void FailSyncsOf(const std::string& path_end, int error) {
  FailingPathEnd() = path_end;
  failing_error = error;
}

}  // namespace stemma::server

// Stand before the C library's for everything that is linked into this program.
extern "C" {
__attribute__((visibility("default"))) int fsync(int fd) { return stemma::server::Sync(SYS_fsync, fd); }
__attribute__((visibility("default"))) int fdatasync(int fd) { return stemma::server::Sync(SYS_fdatasync, fd); }
}
