#include "tests/server/coordinator/spool_unlinks.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace stemma::testing {
namespace {

struct Unlinks {
  Mutex mutex;
  std::function<int()> before ABSL_GUARDED_BY(mutex);
};

Unlinks& AllUnlinks() {
  static auto& unlinks = *new Unlinks;
  return unlinks;
}

void SetBefore(std::function<int()> before) {
  MutexLock lock(&AllUnlinks().mutex);
  AllUnlinks().before = std::move(before);
}

std::function<int()> Before() {
  MutexLock lock(&AllUnlinks().mutex);
  return AllUnlinks().before;
}

}  // namespace

SpoolUnlinks::SpoolUnlinks(std::function<int()> before) { SetBefore(std::move(before)); }

SpoolUnlinks::~SpoolUnlinks() { SetBefore(nullptr); }

}  // namespace stemma::testing

// Stands before the C library's for everything that is linked into this program.
extern "C" __attribute__((visibility("default"))) int unlink(const char* path) noexcept {
  const std::function<int()> before = stemma::testing::Before();
  const bool is_spooled = std::string_view(path).find("/spool/") != std::string_view::npos;
  if (const int error = is_spooled && before != nullptr ? before() : 0; error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
