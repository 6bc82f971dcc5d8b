#include "common/base/process.h"

#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <initializer_list>

#include "gtest/gtest.h"

namespace stemma {
namespace {

// Exit codes of the children below.
constexpr int kNoNamespace = 100, kOutlived = 101, kEndedBySignal = 102;
constexpr int kPatienceMs = 10'000;  // with a process that should have ended

// Returns what the first process of a PID namespace exits with that calls `begin` and is then sent these signals.
int ExitOfFirstProcess(const std::function<void()>& begin, std::initializer_list<int> signals) {
  const pid_t child = fork();
  if (child == 0) {
    int ready[2];
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0 || pipe(ready) != 0) _exit(kNoNamespace);
    const pid_t first = fork();
    if (first == 0) {
      begin();
      if (write(ready[1], "r", 1) == 1) poll(nullptr, 0, kPatienceMs);
      _exit(kOutlived);
    }
    char byte = 0;
    if (first < 0 || read(ready[0], &byte, 1) != 1) _exit(kNoNamespace);
    for (const int signal_number : signals) kill(first, signal_number);
    int status = 0;
    waitpid(first, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : kEndedBySignal);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

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

TEST(ProcessTest, TheFirstProcessOfANamespaceEndsAtASignal) {
  const int at_sigterm = ExitOfFirstProcess(EndAtSignalsAsFirstProcess, {SIGTERM});
  if (at_sigterm == kNoNamespace) GTEST_SKIP() << "needs PID namespaces of a user's own";
  EXPECT_EQ(at_sigterm, 128 + SIGTERM);
  EXPECT_EQ(ExitOfFirstProcess(EndAtSignalsAsFirstProcess, {SIGINT}), 128 + SIGINT);
  EXPECT_EQ(ExitOfFirstProcess(EndAtSignalsAsFirstProcess, {SIGHUP}), 128 + SIGHUP);
}

TEST(ProcessTest, TheFirstProcessOfANamespaceIgnoresWhatItWasStartedToIgnore) {
  const auto begin = [] {
    signal(SIGINT, SIG_IGN);
    EndAtSignalsAsFirstProcess();
  };
  const int code = ExitOfFirstProcess(begin, {SIGINT, SIGTERM});
  if (code == kNoNamespace) GTEST_SKIP() << "needs PID namespaces of a user's own";
  EXPECT_EQ(code, 128 + SIGTERM);
}

// A closed terminal sends it; nohup's children outlive one.
TEST(ProcessTest, AHangUpStopsWhatDoesNotIgnoreIt) {
  for (const bool ignored : {false, true}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
      const sigset_t signals = StopSignals();
      _exit(sigismember(&signals, SIGHUP) + 2 * sigismember(&signals, SIGTERM) + 4 * sigismember(&signals, SIGINT));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), ignored ? 6 : 7);
  }
}

TEST(ProcessTest, AnyOtherProcessEndsByTheSignalItself) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    EndAtSignalsAsFirstProcess();
    raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

}  // namespace
}  // namespace stemma
