#include "tests/testing/disk_left.h"

#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/mutex.h"

namespace stemma::testing {
namespace {

struct Left {
  Mutex mutex;
  int64_t bytes ABSL_GUARDED_BY(mutex) = -1;
};

Left& All() {
  static auto& left = *new Left;
  return left;
}

// Fills in what common/base/free_bytes.cc reads.
int Statvfs(const char* path, struct statvfs* result) {
  struct statfs info;
  if (syscall(SYS_statfs, path, &info) != 0) return -1;
  *result = {};
  result->f_frsize = static_cast<unsigned long>(info.f_frsize != 0 ? info.f_frsize : info.f_bsize);
  result->f_bavail = info.f_bavail;
  MutexLock lock(&All().mutex);
  if (All().bytes < 0) return 0;
  result->f_frsize = 1;
  result->f_bavail = static_cast<fsblkcnt_t>(All().bytes);
  return 0;
}

}  // namespace

void SetFreeBytes(int64_t bytes) {
  MutexLock lock(&All().mutex);
  All().bytes = bytes;
}

void UseFreeBytes(int64_t bytes) {
  MutexLock lock(&All().mutex);
  if (All().bytes >= 0) All().bytes = std::max<int64_t>(0, All().bytes - bytes);
}

}  // namespace stemma::testing

// Stands before the C library's for everything that is linked into this program.
extern "C" __attribute__((visibility("default"))) int statvfs(const char* path, struct statvfs* result) {
  return stemma::testing::Statvfs(path, result);
}
