// A limit of threads is told before one is missed.
#include "common/base/thread_room.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

constexpr uid_t kUserOfFew = 61234;  // that runs nothing else
constexpr int kNoUser = 100;
#ifdef __SANITIZE_THREAD__
constexpr rlim_t kThreadsOfSanitizer = 1;  // in every process
#else
constexpr rlim_t kThreadsOfSanitizer = 0;
#endif

// Returns what a process of a user who may run so many threads makes of `wanted` more.
int ExitWithin(rlim_t threads, size_t wanted) {
  const pid_t child = fork();
  if (child == 0) {
    const rlim_t allowed = threads + kThreadsOfSanitizer;
    const rlimit limit = {.rlim_cur = allowed, .rlim_max = allowed};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) _exit(kNoUser);
    if (geteuid() != 0 || setresuid(kUserOfFew, kUserOfFew, kUserOfFew) != 0) _exit(kNoUser);
    const absl::Status room = CheckThreadRoom(wanted);
    if (room.ok()) _exit(0);
    const bool tells = room.code() == absl::StatusCode::kFailedPrecondition &&
                       room.message().find("may start 4 threads more, and needs 9") != room.message().npos;
    _exit(tells ? 2 : 3);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(ThreadRoomTest, ThreadsThatCannotBeStartedAreToldOf) {
  EXPECT_THAT(CheckThreadRoom(4), testing::IsOk());
  const int code = ExitWithin(/*threads=*/5, /*wanted=*/9);
  if (code == kNoUser) GTEST_SKIP() << "needs the right to be another user";
  EXPECT_EQ(code, 2);
  EXPECT_EQ(ExitWithin(/*threads=*/10, /*wanted=*/9), 0) << "control";
}

}  // namespace
}  // namespace stemma
