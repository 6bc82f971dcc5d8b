#include "common/base/process.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace stemma {
namespace {

// A grandchild holds the pipe's write end; its end is the pipe's end of file.
TEST(ProcessTest, AChildEndsWhenItsParentIsKilled) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    const pid_t self = getpid();
    if (fork() == 0) {
      DieWithParent(self);
      if (write(pipe_fds[1], "r", 1) != 1) _exit(1);
      while (true) pause();
    }
    close(pipe_fds[1]);
    while (true) pause();
  }
  close(pipe_fds[1]);
  char byte = 0;
  ASSERT_EQ(read(pipe_fds[0], &byte, 1), 1);  // the grandchild is ready
  pollfd waiting{.fd = pipe_fds[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&waiting, 1, 0), 0) << "it must live as long as its parent";
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  ASSERT_EQ(poll(&waiting, 1, 30000), 1) << "it outlived its parent";
  EXPECT_EQ(read(pipe_fds[0], &byte, 1), 0);
  close(pipe_fds[0]);
}

TEST(ProcessTest, AChildOfAnotherParentExitsAtOnce) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    DieWithParent(/*parent=*/1 << 30);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace stemma
