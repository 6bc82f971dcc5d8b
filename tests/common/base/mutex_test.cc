// Conditions are met across threads, timeouts end a wait. Meant for TSan too.
#include "common/base/mutex.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace stemma {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(MutexTest, CountsOfManyThreadsAreWhole) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        MutexLock lock(&mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(MutexTest, AChangeMadeBeforeAwaitWakesAnotherWaiter) {
  Mutex mutex;
  bool asked = false, answered = false;
  std::thread other([&] {
    MutexLock lock(&mutex);
    mutex.Await([&] { return asked; });
    answered = true;
  });
  {
    MutexLock lock(&mutex);
    asked = true;  // the lock is let go by the next line only
    EXPECT_TRUE(mutex.AwaitWithTimeout([&] { return answered; }, kPatience));
  }
  other.join();
}

TEST(MutexTest, ATimeoutEndsAWaitWithTheLockHeld) {
  Mutex mutex;
  MutexLock lock(&mutex);
  EXPECT_FALSE(mutex.AwaitWithTimeout([] { return false; }, absl::Milliseconds(1)));
  EXPECT_FALSE(mutex.AwaitWithTimeout([] { return false; }, -absl::InfiniteDuration()));
  EXPECT_TRUE(mutex.AwaitWithTimeout([] { return true; }, absl::InfiniteDuration()));
}

}  // namespace
}  // namespace stemma
