#include "client/cli/local/child_output.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/local/child_process.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/unique_fd.h"

namespace stemma::cli {

absl::StatusOr<std::string> ReadPrinted(int fd, const std::string& program) {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus("read the output of", program, errno);
    if (count == 0) return text;
    if (text.size() + static_cast<size_t>(count) > kChildOutputBytesMax) {
      return absl::InternalError(
          absl::StrCat(program, " printed more than the ", kChildOutputBytesMax, " bytes that are taken"));
    }
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

absl::StatusOr<ChildOutput> ReadChild(const std::vector<std::string>& argv) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe to", argv.front(), errno);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  ASSIGN_OR_RETURN(const pid_t pid, StartChild({.argv = argv, .stdout_fd = write_end.get()}));
  write_end.Reset();  // the child's alone: the end of what is read is its end
  absl::StatusOr<std::string> text = ReadPrinted(read_end.get(), argv.front());
  read_end.Reset();
  if (!text.ok()) kill(pid, SIGKILL);
  ChildOutput output;
  while (waitpid(pid, &output.wait_status, 0) < 0 && errno == EINTR) {
  }
  ASSIGN_OR_RETURN(output.text, std::move(text));
  return output;
}

}  // namespace stemma::cli
