#include "common/base/descriptors.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

constexpr int kOthers[] = {3, 60, 200};  // descriptors of a child that exec does not close
constexpr int kCannotRefuse = 100;       // exit code of a child

// Makes close_range fail in this process as on a kernel that does not have it.
void RefuseCloseRange() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = 4, .filter = filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
  if (close_range(kOthers[0], kOthers[0], CLOSE_RANGE_CLOEXEC) == 0 || errno != ENOSYS) _exit(kCannotRefuse);
}

void CloseAtExecWithoutCloseRange() {
  RefuseCloseRange();
  CloseDescriptorsAtExec();
}

// Returns what a child exits with whose place a shell takes, after `before`: 0 if the shell has the descriptor, 1 if it
// does not.
int ExitOfShellThatLooksFor(int fd, const std::function<void()>& before) {
  const std::string command = absl::StrCat("[ -e /proc/$$/fd/", fd, " ]");
  const pid_t child = fork();
  if (child == 0) {
    for (const int other : kOthers) dup2(STDERR_FILENO, other);
    before();
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(kCannotRefuse + 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(DescriptorsTest, ExecLeavesTheStandardOnesAlone) {
  for (const int fd : kOthers) {
    EXPECT_EQ(ExitOfShellThatLooksFor(fd, [] {}), 0) << fd << " outlives exec where nothing is done";
    EXPECT_EQ(ExitOfShellThatLooksFor(fd, CloseDescriptorsAtExec), 1) << fd;
  }
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    EXPECT_EQ(ExitOfShellThatLooksFor(fd, CloseDescriptorsAtExec), 0) << fd;
  }
}

TEST(DescriptorsTest, ExecLeavesTheStandardOnesAloneOnAnOlderKernel) {
  if (ExitOfShellThatLooksFor(kOthers[0], RefuseCloseRange) == kCannotRefuse) GTEST_SKIP() << "needs seccomp filters";
  for (const int fd : kOthers) EXPECT_EQ(ExitOfShellThatLooksFor(fd, CloseAtExecWithoutCloseRange), 1) << fd;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    EXPECT_EQ(ExitOfShellThatLooksFor(fd, CloseAtExecWithoutCloseRange), 0) << fd;
  }
}

// Returns the exit code of a child that has closed these before: bit FD is set where FD is not open, or is no device,
// and bit 3 where another file took the number of one of them.
int ExitOfChildThatOpens(const std::vector<int>& closed) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int fd : closed) close(fd);
    OpenStandardDescriptors();
    int found = 0;
    for (int fd = 0; fd < 3; ++fd) {
      struct stat info;
      if (fstat(fd, &info) != 0) found |= 1 << fd;
    }
    _exit(found | (open("/proc/self/exe", O_RDONLY) < 3 ? 8 : 0));
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// Else the lock of a data directory is what the log is written into.
TEST(DescriptorsTest, NoFileTakesTheNumberOfAStandardOne) {
  for (const std::vector<int>& closed : {std::vector<int>{}, {2}, {1, 2}, {0}, {0, 2}, {0, 1, 2}}) {
    EXPECT_EQ(ExitOfChildThatOpens(closed), 0) << closed.size() << " closed";
  }
}

TEST(DescriptorsTest, WhatIsOpenIsCounted) {
  const uint64_t before = CountDescriptors().open;
  const int fd = dup(STDERR_FILENO);
  EXPECT_EQ(CountDescriptors().open, before + 1);
  close(fd);
  EXPECT_EQ(CountDescriptors().open, before);
}

TEST(DescriptorsTest, TheSoftLimitIsRaisedToTheHardOne) {
  rlimit given = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &given), 0);
  const rlimit lower = {.rlim_cur = 256, .rlim_max = given.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  EXPECT_EQ(CountDescriptors().limit, 256u);
  RaiseDescriptorLimit();
  rlimit raised = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, given.rlim_max);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &given), 0);
}

}  // namespace
}  // namespace stemma
