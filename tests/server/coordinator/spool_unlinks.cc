#include "tests/server/coordinator/spool_unlinks.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace stemma::testing {
namespace {

struct Unlinks {
  Mutex mutex;
  std::function<void()> before ABSL_GUARDED_BY(mutex);
};

Unlinks& AllUnlinks() {
  static auto& unlinks = *new Unlinks;
  return unlinks;
}

void SetBefore(std::function<void()> before) {
  MutexLock lock(&AllUnlinks().mutex);
  AllUnlinks().before = std::move(before);
}

std::function<void()> Before() {
  MutexLock lock(&AllUnlinks().mutex);
  return AllUnlinks().before;
}

}  // namespace

SpoolUnlinks::SpoolUnlinks(std::function<void()> before) { SetBefore(std::move(before)); }

SpoolUnlinks::~SpoolUnlinks() { SetBefore(nullptr); }

}  // namespace stemma::testing

// Stands before the C library's for everything that is linked into this program.
extern "C" __attribute__((visibility("default"))) int unlink(const char* path) noexcept {
  const std::function<void()> before = stemma::testing::Before();
  if (before != nullptr && std::string_view(path).find("/spool/") != std::string_view::npos) before();
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
