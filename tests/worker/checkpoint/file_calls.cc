#include "tests/worker/checkpoint/file_calls.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

namespace stemma::testing {
namespace {

struct Failing {
  std::string path_end;
  int error = 0;
  size_t bytes_before = 0;
};

struct Calls {
  Mutex mutex;
  std::vector<std::string> synced ABSL_GUARDED_BY(mutex);
  size_t bytes_max ABSL_GUARDED_BY(mutex) = 0;
  bool interrupted ABSL_GUARDED_BY(mutex) = false;
  Failing write ABSL_GUARDED_BY(mutex), sync ABSL_GUARDED_BY(mutex);
};

Calls& All() {
  static auto& calls = *new Calls;
  return calls;
}

std::string PathOf(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), error).string();
}

ssize_t Pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  Calls& calls = All();
  {
    MutexLock lock(&calls.mutex);
    if (calls.write.error != 0 && absl::EndsWith(PathOf(fd), calls.write.path_end)) {
      if (calls.write.bytes_before == 0) {
        errno = calls.write.error;
        return -1;
      }
      bytes = std::min(bytes, calls.write.bytes_before);
      calls.write.bytes_before -= bytes;
    }
    if (calls.bytes_max > 0) {
      calls.interrupted = !calls.interrupted;
      if (calls.interrupted) {
        errno = EINTR;
        return -1;
      }
      bytes = std::min(bytes, calls.bytes_max);
    }
  }
  const ssize_t written = syscall(SYS_pwrite64, fd, data, bytes, offset);
  if (written > 0) UseFreeBytes(written);
  return written;
}

int Fsync(int fd) {
  Calls& calls = All();
  MutexLock lock(&calls.mutex);
  const std::string path = PathOf(fd);
  calls.synced.push_back(std::filesystem::path(path).filename().string());
  if (calls.sync.error == 0 || !absl::EndsWith(path, calls.sync.path_end)) {
    return static_cast<int>(syscall(SYS_fsync, fd));
  }
  errno = calls.sync.error;
  return -1;
}

}  // namespace

std::vector<std::string> TakeSyncedFiles() {
  MutexLock lock(&All().mutex);
  return std::exchange(All().synced, {});
}

void CutWrites(size_t bytes_max) {
  MutexLock lock(&All().mutex);
  All().bytes_max = bytes_max;
}

void FailWritesOf(const std::string& path_end, int error, size_t bytes_before) {
  MutexLock lock(&All().mutex);
  All().write = {path_end, error, bytes_before};
}

void FailSyncsOf(const std::string& path_end, int error) {
  MutexLock lock(&All().mutex);
  All().sync = {path_end, error, 0};
}

}  // namespace stemma::testing

// Stand before the C library's for everything that is linked into this program.
extern "C" {
__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return stemma::testing::Pwrite(fd, data, bytes, offset);
}
__attribute__((visibility("default"))) ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t offset) {
  return stemma::testing::Pwrite(fd, data, bytes, offset);
}
__attribute__((visibility("default"))) int fsync(int fd) { return stemma::testing::Fsync(fd); }
}
