#include "worker/memory/thread_copy_engine.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "tests/testing/namespaces.h"
#include "tests/worker/memory/copy_engine_suite.h"

namespace stemma::testing {
namespace {

// On a CPU both ends are plain memory.
struct ThreadSide {
  static std::string WhyNot() { return ""; }
  CopyEngine& engine() { return engine_; }

  using Device = PlainMemory;
  using Host = PlainMemory;

  ThreadCopyEngine engine_;
};

// What an engine said. Its copying thread speaks, too.
class Heard {
 public:
  CopyObserver observer() {
    return [this](const CopyTimes& times) {
      MutexLock lock(&mutex_);
      times_.push_back(times);
    };
  }
  std::vector<CopyTimes> Take() {
    MutexLock lock(&mutex_);
    return std::exchange(times_, {});
  }

 private:
  Mutex mutex_;
  std::vector<CopyTimes> times_ ABSL_GUARDED_BY(mutex_);
};

TEST(ThreadCopyEngineTest, AnObserverHearsEveryCopyAndWait) {
  using Kind = CopyTimes::Kind;
  Bytes device = Pattern(100, 1), host(100);
  ThreadCopyEngine engine;
  Heard heard;
  CopyTicket last = 0;
  const auto copy = [&](Kind kind, int64_t bytes) {
    const std::vector<CopySpan> spans = {{device.data(), host.data(), bytes}, {device.data(), host.data(), 1}};
    last = kind == Kind::kOut ? engine.StartCopyOut(spans) : engine.StartCopyIn(spans);
    ASSERT_TRUE(engine.Wait(last).ok());
  };
  copy(Kind::kOut, 10);
  EXPECT_TRUE(heard.Take().empty()) << "nobody asked";

  const double before_s = RealClock().MonotonicSeconds();
  engine.Observe(heard.observer());
  copy(Kind::kOut, 20);
  copy(Kind::kIn, 30);
  const double after_s = RealClock().MonotonicSeconds();
  const std::vector<CopyTimes> times = heard.Take();
  ASSERT_EQ(times.size(), 4u);
  // A copy is told before who waits for it can know of its end.
  const std::pair<Kind, int64_t> expected[] = {{Kind::kOut, 21}, {Kind::kWait, 0}, {Kind::kIn, 31}, {Kind::kWait, 0}};
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(times[i].kind, expected[i].first) << i;
    EXPECT_EQ(times[i].bytes, expected[i].second) << i;
    EXPECT_EQ(times[i].ticket, i < 2 ? last - 1 : last) << i;
    EXPECT_LE(before_s, times[i].begun_s) << i;
    EXPECT_LE(times[i].begun_s, times[i].ended_s) << i;
    EXPECT_LE(times[i].ended_s, after_s) << i;
  }
  engine.Observe({});
  copy(Kind::kIn, 40);
  EXPECT_TRUE(heard.Take().empty()) << "nobody asks any more";
}

// Once the first copy has ended, the second is running: the thread takes it before it lets anyone know.
TEST(ThreadCopyEngineTest, TheCopyBehindOneThatIsCancelledWhileItRunsIsWhole) {
  constexpr size_t kCount = size_t{64} << 20;
  const Bytes from(kCount, 1);
  ThreadCopyEngine engine;
  for (int i = 0; i < 5; ++i) {
    Bytes first(1), to(kCount), next(kCount);
    const CopyTicket before = engine.StartCopyOut({{from.data(), first.data(), 1}});
    const CopyTicket running = engine.StartCopyOut({{from.data(), to.data(), static_cast<int64_t>(kCount)}});
    ASSERT_TRUE(engine.Wait(before).ok());
    engine.Cancel(running);
    ASSERT_TRUE(engine.Wait(engine.StartCopyOut({{from.data(), next.data(), static_cast<int64_t>(kCount)}})).ok());
    EXPECT_EQ(next, from);
  }
}

// Whoever cancels gives the memory away. The observer holds the copy up at its end.
TEST(ThreadCopyEngineTest, ACancelReturnsNoSoonerThanItsCopyIsOver) {
  const Bytes from(1, 1);
  Bytes to(1);
  std::atomic<bool> begun = false, may_end = false, cancelled = false;
  ThreadCopyEngine engine;
  engine.Observe([&](const CopyTimes&) {
    begun = true;
    while (!may_end) std::this_thread::yield();
  });
  const CopyTicket ticket = engine.StartCopyOut({{from.data(), to.data(), 1}});
  while (!begun) std::this_thread::yield();
  std::thread cancels([&] {
    engine.Cancel(ticket);
    cancelled = true;
  });
  RealClock().Sleep(absl::Milliseconds(50));  // a Cancel that does not wait returns meanwhile
  EXPECT_FALSE(cancelled);
  may_end = true;
  cancels.join();
}

INSTANTIATE_TYPED_TEST_SUITE_P(Thread, CopyEngineTest, ThreadSide);
INSTANTIATE_TYPED_TEST_SUITE_P(Thread, CopyEngineDeathTest, ThreadSide);

}  // namespace
}  // namespace stemma::testing
