#include "tests/testing/disk_left.h"

#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/mutex.h"

namespace stemma::testing {
namespace {

struct Left {
  Mutex mutex;
  int64_t bytes ABSL_GUARDED_BY(mutex) = -1;
  int error ABSL_GUARDED_BY(mutex) = 0;
  DiskAnswer answer ABSL_GUARDED_BY(mutex) = DiskAnswer::kTruth;
  std::function<void()> after ABSL_GUARDED_BY(mutex);
};

Left& All() {
  static auto& left = *new Left;
  return left;
}

// Fills in what common/base/free_bytes.cc reads.
int Statvfs(const char* path, struct statvfs* result) {
  Left& all = All();
  MutexLock lock(&all.mutex);
  all.mutex.Await([&all]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.mutex) { return all.answer != DiskAnswer::kNever; });
  if (const int error = std::exchange(all.error, 0); error != 0) {
    errno = error;
    return -1;
  }
  struct statfs info;
  if (syscall(SYS_statfs, path, &info) != 0) return -1;
  *result = {};
  if (all.answer == DiskAnswer::kNoBlocks) return 0;
  result->f_frsize = static_cast<unsigned long>(info.f_frsize != 0 ? info.f_frsize : info.f_bsize);
  result->f_blocks = info.f_blocks;
  result->f_bavail = info.f_bavail;
  if (all.bytes < 0) return 0;
  result->f_frsize = 1;
  result->f_blocks = fsblkcnt_t{1} << 62;
  result->f_bavail = static_cast<fsblkcnt_t>(all.bytes);
  return 0;
}

void CallAfter() {
  std::function<void()> call;
  {
    MutexLock lock(&All().mutex);
    call = std::exchange(All().after, nullptr);
  }
  if (call != nullptr) call();
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

void FailFreeBytes(int error) {
  MutexLock lock(&All().mutex);
  All().error = error;
}

void AfterFreeBytesAreTaken(std::function<void()> call) {
  MutexLock lock(&All().mutex);
  All().after = std::move(call);
}

DiskAnswers::DiskAnswers(DiskAnswer answer) {
  MutexLock lock(&All().mutex);
  All().answer = answer;
}

DiskAnswers::~DiskAnswers() {
  MutexLock lock(&All().mutex);
  All().answer = DiskAnswer::kTruth;
}

}  // namespace stemma::testing

// Stands before the C library's for everything that is linked into this program.
extern "C" __attribute__((visibility("default"))) int statvfs(const char* path, struct statvfs* result) {
  const int status = stemma::testing::Statvfs(path, result);
  const int error = errno;
  stemma::testing::CallAfter();
  errno = error;
  return status;
}
