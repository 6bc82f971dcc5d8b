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

bool LineWriter::TryLine(std::string_view told, std::string_view line) {
  std::string text = rest_;
  text.append(told).append(line);
  const size_t written = TryWrite(text);
  const size_t rest_end = rest_.size();
  const size_t told_end = rest_end + told.size();
  if (written > told_end) {
    rest_ = text.substr(written);
    dropped_ = 0;
  } else if (written > rest_end) {
    rest_ = text.substr(written, told_end - written);
    dropped_ = 1;  // `line`: those before it are told of, now or by the rest
  } else {
    rest_.erase(0, written);
    ++dropped_;
  }
  return written == text.size();
}

size_t LineWriter::TryWrite(std::string_view text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = WriteNow(fd_, text.substr(written));
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitForRoom()) break;
    } else if (errno != EINTR) {
      break;
    }
  }
  return written;
}

bool LineWriter::WaitForRoom() {
  if (dropped_ > 0 || !rest_.empty()) return false;
  pollfd room = {.fd = fd_, .events = POLLOUT, .revents = 0};
  return poll(&room, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) > 0;
}

}  // namespace stemma
