#include "common/base/thread_stack.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

std::atomic<bool> inside = false, over = false;

// Stands still, as an engine does that hangs.
__attribute__((noinline)) void StandStill() {
  inside = true;
  while (!over) RealClock().Sleep(absl::Milliseconds(1));
}

class ThreadStackTest : public ::testing::Test {
 protected:
  ThreadStackTest() { inside = over = false; }
  static void WaitInside() {
    while (!inside) RealClock().Sleep(absl::Milliseconds(1));
  }
};

TEST_F(ThreadStackTest, NamesTheFunctionsInWhichAThreadIs) {
  std::thread thread(StandStill);
  WaitInside();
  for (int i = 0; i < 3; ++i) {
    const std::string stack = StackOf(thread.native_handle(), absl::Seconds(30));
    EXPECT_NE(stack.find("StandStill"), std::string::npos) << stack;
    EXPECT_EQ(stack.find("Answer"), std::string::npos) << stack;
  }
  over = true;
  thread.join();
}

TEST_F(ThreadStackTest, AThreadThatDoesNotAnswerHasNoneAndTheNextOneHasItsOwn) {
  std::thread deaf([] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    StandStill();
  });
  WaitInside();
  EXPECT_EQ(StackOf(deaf.native_handle(), absl::Milliseconds(20)), "");
  inside = false;
  std::thread hears(StandStill);
  WaitInside();
  EXPECT_NE(StackOf(hears.native_handle(), absl::Seconds(30)).find("StandStill"), std::string::npos);
  over = true;
  deaf.join();
  hears.join();
}

TEST_F(ThreadStackTest, AThreadThatHasEndedHasNone) {
  std::atomic<pid_t> id = 0;
  std::thread thread([&] { id = gettid(); });
  while (id == 0) RealClock().Sleep(absl::Milliseconds(1));
  const std::string task = absl::StrCat("/proc/self/task/", id.load());
  while (access(task.c_str(), F_OK) == 0) RealClock().Sleep(absl::Milliseconds(1));
  EXPECT_EQ(StackOf(thread.native_handle(), absl::Milliseconds(20)), "");
  thread.join();
}

}  // namespace
}  // namespace stemma
