// A coordinator that decides nothing: when that is said, and when it is said to be over.
#include "server/coordinator/answer_watch.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/answer_watch_thread.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLateAfter = absl::Seconds(10), kHangsAfter = absl::Seconds(30);
constexpr absl::Time kBegin = absl::UnixEpoch();

// Looks so often, a second apart. Returns what changed, with the second.
std::vector<std::pair<int, Answering>> LookFor(AnswerWatch& watch, int begin, int end, bool answered) {
  std::vector<std::pair<int, Answering>> changes;
  for (int second = begin + 1; second <= end; ++second) {
    const auto change = watch.Look(kBegin + absl::Seconds(second), answered);
    if (change) changes.emplace_back(second, change->now);
  }
  return changes;
}

TEST(AnswerWatchTest, ASilenceIsLateThenHangsAndEndsWithAnAnswer) {
  AnswerWatch watch(kBegin, kLateAfter, kHangsAfter);
  EXPECT_THAT(LookFor(watch, 0, 1000, true), ElementsAre());
  EXPECT_THAT(LookFor(watch, 1000, 1100, false),
              ElementsAre(std::pair(1010, Answering::kLate), std::pair(1030, Answering::kHangs)));
  EXPECT_THAT(LookFor(watch, 1100, 1200, true), ElementsAre(std::pair(1101, Answering::kAnswers)));
  EXPECT_THAT(LookFor(watch, 1200, 1210, false), ElementsAre(std::pair(1210, Answering::kLate)));
  EXPECT_THAT(LookFor(watch, 1210, 1211, true), ElementsAre(std::pair(1211, Answering::kAnswers)));
}

TEST(AnswerWatchTest, AnAnswerBeginsTheTimeAnew) {
  AnswerWatch watch(kBegin, kLateAfter, kHangsAfter);
  EXPECT_THAT(LookFor(watch, 0, 9, false), ElementsAre());
  EXPECT_THAT(LookFor(watch, 9, 10, true), ElementsAre());
  EXPECT_THAT(LookFor(watch, 10, 19, false), ElementsAre());
  EXPECT_THAT(LookFor(watch, 19, 20, false), ElementsAre(std::pair(20, Answering::kLate)));
}

// The watch's own look came late: the process, or its machine, was stopped.
TEST(AnswerWatchTest, TimeInWhichTheProcessSleptDoesNotCount) {
  AnswerWatch watch(kBegin, kLateAfter, kHangsAfter);
  for (int sleeps = 1; sleeps <= 4; ++sleeps) {
    EXPECT_FALSE(watch.Look(kBegin + absl::Hours(sleeps), false)) << sleeps;
  }
  EXPECT_TRUE(watch.Look(kBegin + absl::Hours(5), false)) << "2 s of each count";
  EXPECT_FALSE(watch.Look(kBegin, false)) << "a clock that is set back";
}

TEST(AnswerWatchTest, ItsReasonsAreErrorsAndTheEndAWarning) {
  AnswerWatch watch(kBegin, absl::Seconds(1), absl::Seconds(2));
  const std::optional<AnswerWatch::Change> late = watch.Look(kBegin + absl::Seconds(1), false);
  const std::optional<AnswerWatch::Change> hangs = watch.Look(kBegin + absl::Seconds(2), false);
  const std::optional<AnswerWatch::Change> answers = watch.Look(kBegin + absl::Seconds(3), true);
  ASSERT_TRUE(late && hangs && answers);
  EXPECT_EQ(late->reason.level, LogLevel::kError);
  EXPECT_THAT(late->reason.text, HasSubstr("nothing for 1s: it is not ready"));
  EXPECT_EQ(hangs->reason.level, LogLevel::kError);
  EXPECT_THAT(hangs->reason.text, HasSubstr("nothing for 2s: it is not alive"));
  EXPECT_EQ(answers->reason.level, LogLevel::kWarning);
  EXPECT_THAT(answers->reason.text, HasSubstr("again, after 3s"));
}

// Each look at it is a second later.
class SteppingClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::InfinitePast(); }  // nobody may ask for the time of day
  double MonotonicSeconds() const override {
    return absl::ToDoubleSeconds((now_ += absl::Seconds(1)) - absl::UnixEpoch());
  }
  void Sleep(absl::Duration) const override {}

 private:
  mutable absl::Time now_ = kBegin;  // of the watch's thread
};

TEST(AnswerWatchThreadTest, ItAsksOneQuestionAfterAnotherAndTellsWhatChanges) {
  constexpr absl::Duration kWithin = absl::Seconds(60);
  Mutex mutex;
  bool hangs = false;
  int asked = 0;
  std::function<void()> waiting;  // the answer to a question while it hangs
  std::vector<Answering> changes;
  const SteppingClock clock;
  AnswerWatchThread watch(
      [&](std::function<void()> answer) {
        MutexLock lock(&mutex);
        ++asked;
        if (!hangs) return answer();
        waiting = std::move(answer);
      },
      AnswerWatch(kBegin, kLateAfter, kHangsAfter), clock,
      [&](Answering now) {
        MutexLock lock(&mutex);
        changes.push_back(now);
      },
      /*look_every=*/absl::Milliseconds(1));
  {
    MutexLock lock(&mutex);
    ASSERT_TRUE(mutex.AwaitWithTimeout([&] { return asked >= 40; }, kWithin));
    EXPECT_THAT(changes, ElementsAre());
    const int before = asked;
    hangs = true;
    ASSERT_TRUE(mutex.AwaitWithTimeout([&] { return changes.size() == 2; }, kWithin));
    EXPECT_EQ(asked, before + 1) << "none is put while one waits";
    hangs = false;
    waiting();
    ASSERT_TRUE(mutex.AwaitWithTimeout([&] { return changes.size() == 3 && asked > before + 1; }, kWithin));
  }
  watch.Stop();
  EXPECT_THAT(changes, ElementsAre(Answering::kLate, Answering::kHangs, Answering::kAnswers));
}

}  // namespace
}  // namespace stemma::server
