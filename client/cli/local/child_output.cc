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
#include "common/base/status_macros.h"
#include "common/base/unique_fd.h"

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
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  ASSIGN_OR_RETURN(const pid_t pid, StartChild({.argv = argv, .stdout_fd = write_end.get()}));
  write_end.Reset();  // the child's alone: the end of what is read is its end
  ChildOutput output;
  const bool whole = ReadAll(read_end.get(), output.text);
  read_end.Reset();
  if (!whole) kill(pid, SIGKILL);
  while (waitpid(pid, &output.wait_status, 0) < 0 && errno == EINTR) {
  }
  if (!whole) return absl::InternalError(absl::StrCat(argv.front(), " printed more than is taken"));
  return output;
}

}  // namespace stemma::cli
