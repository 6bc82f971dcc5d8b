#include "common/base/unique_fd.h"

#include <unistd.h>

#include <cerrno>

namespace stemma {

void UniqueFd::Reset(int fd) {
  const int closed = std::exchange(fd_, fd);
  if (closed < 0) return;
  const int error = errno;
  close(closed);
  errno = error;
}

}  // namespace stemma
