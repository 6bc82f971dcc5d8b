#include "client/cli/local/child_output.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "client/cli/local/child_process.h"
#include "common/base/file.h"

namespace stemma::cli {
namespace {

// Reads until the other end is closed. Returns false where more came than is taken.
bool ReadAll(int fd, std::string& text) {
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count == 0;
    if (text.size() + static_cast<size_t>(count) > kChildOutputBytesMax) return false;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

}  // namespace

absl::StatusOr<ChildOutput> ReadChild(const std::vector<std::string>& argv) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe to", argv.front(), errno);
  const absl::StatusOr<pid_t> pid = StartChild({.argv = argv, .stdout_fd = ends[1]});
  close(ends[1]);
  ChildOutput output;
  const bool whole = pid.ok() && ReadAll(ends[0], output.text);
  close(ends[0]);
  if (!pid.ok()) return pid.status();
  if (!whole) kill(*pid, SIGKILL);
  while (waitpid(*pid, &output.wait_status, 0) < 0 && errno == EINTR) {
  }
  if (!whole) return absl::InternalError(absl::StrCat(argv.front(), " printed more than is taken"));
  return output;
}

}  // namespace stemma::cli
