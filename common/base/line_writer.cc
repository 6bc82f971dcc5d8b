#include "common/base/line_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

// Opens a pipe once more, which does not wait: O_NONBLOCK is of the open file, which other processes share. None: it is
// no pipe, or cannot be opened again.
UniqueFd ReopenWithoutWaiting(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return UniqueFd();
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
}

ssize_t WriteNow(int fd, std::string_view bytes) {
  const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent < 0 && errno == ENOTSOCK ? write(fd, bytes.data(), bytes.size()) : sent;
}

}  // namespace

LineWriter::LineWriter(int fd) : reopened_(ReopenWithoutWaiting(fd)), fd_(reopened_.valid() ? reopened_.get() : fd) {}

bool LineWriter::TryWrite(std::string_view line) {
  while (!line.empty()) {
    const ssize_t count = WriteNow(fd_, line);
    if (count >= 0) {
      line.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitForRoom()) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool LineWriter::WaitForRoom() {
  if (dropped_ > 0) return false;
  pollfd room = {.fd = fd_, .events = POLLOUT, .revents = 0};
  return poll(&room, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) > 0;
}

}  // namespace stemma
