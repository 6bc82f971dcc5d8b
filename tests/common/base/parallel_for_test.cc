#include "common/base/parallel_for.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(ParallelForTest, EachIndexIsWorkedOnOnceByNoMoreThreadsThanMay) {
  for (const size_t count : {0, 1, 2, 7, 40}) {
    for (const size_t threads : {0, 1, 2, 5, 16}) {
      SCOPED_TRACE(::testing::Message() << count << " pieces, " << threads << " threads");
      std::vector<int> times(count);
      std::mutex mutex;
      std::set<std::thread::id> workers;
      ParallelFor(count, threads, [&](size_t i) {
        ++times[i];
        RealClock().Sleep(absl::Milliseconds(1));  // so that each thread that there is takes some
        const std::lock_guard lock(mutex);
        workers.insert(std::this_thread::get_id());
      });
      EXPECT_EQ(times, std::vector<int>(count, 1));
      EXPECT_LE(workers.size(), std::max<size_t>(threads, 1));
    }
  }
}

// Each piece waits for all others.
TEST(ParallelForTest, PiecesAreWorkedOnAtTheSameTime) {
  constexpr size_t kThreads = 4;
  std::mutex mutex;
  std::condition_variable changed;
  size_t here = 0, met = 0;
  ParallelFor(kThreads, kThreads, [&](size_t) {
    std::unique_lock lock(mutex);
    if (++here == kThreads) changed.notify_all();
    met += changed.wait_for(lock, std::chrono::seconds(20), [&] { return here == kThreads; }) ? 1 : 0;
  });
  EXPECT_EQ(here, kThreads) << "it returned before all pieces were done";
  EXPECT_EQ(met, kThreads);
}

}  // namespace
}  // namespace stemma
