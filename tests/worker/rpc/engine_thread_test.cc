// The engine thread with the fake engine: order, answers, aborts that overtake, refusals, ranks that have gone.
#include "worker/rpc/engine_thread.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/worker/rpc/engine_thread_fixture.h"

namespace stemma::worker {
namespace {

TEST_F(EngineThreadTest, AStepIsVotedAndApplied) {
  PostPayload("a", "g");
  PostPrepare(Key("a", 1));
  EXPECT_TRUE(sent_.Next().vote().yes());
  PostApply(Key("a", 1));
  EXPECT_EQ(sent_.Next().applied().key().step(), 1u);
}

// The server loses a worker whose counter stands still while a job runs.
TEST_F(EngineThreadTest, ProgressGrowsWithMessagesAndWavesOnly) {
  uint64_t before = thread_.Heartbeat().progress();
  const auto moved = [&] {
    return thread_.Heartbeat().progress() - std::exchange(before, thread_.Heartbeat().progress());
  };
  PostPayload("a", "hang");  // it says once that it runs, then it stands still until it is cancelled
  PostPrepare(Key("a", 1));
  while (thread_.Heartbeat().phase() != "suffix") RealClock().Sleep(absl::Milliseconds(1));
  EXPECT_EQ(moved(), 3u) << "two messages and a wave";
  EXPECT_EQ(moved(), 0u);
  PostAbort(Key("a", 1));
  EXPECT_EQ(sent_.Next().vote().no_reason(), internal::v1::CANCELLED);
  PostPayload("b", "g");
  PostPrepare(Key("b", 1));
  EXPECT_TRUE(sent_.Next().vote().yes());
  EXPECT_EQ(moved(), 3u) << "the abort, a payload and a Prepare; the counter never starts again";
}

TEST_F(EngineThreadTest, PrepareAndApplyOfAnotherAttemptOrIncarnationAreRefused) {
  PostPayload("a", "g");
  internal::v1::StepKey stranger = Key("a", 1);
  stranger.set_incarnation("w0");
  PostPrepare(stranger);
  EXPECT_EQ(sent_.Next().refused().key().incarnation(), "w0");
  PostPrepare(Key("a", 1, /*attempt=*/2));
  EXPECT_TRUE(sent_.Next().has_vote());
  PostApply(Key("a", 1, /*attempt=*/1));
  EXPECT_EQ(sent_.Next().refused().key().attempt(), 1u);
  PostApply(Key("a", 1, /*attempt=*/2));
  EXPECT_TRUE(sent_.Next().has_applied());
}

TEST_F(EngineThreadTest, AnAbortReachesTheStepThatRuns) {
  PostPayload("a", "hang");
  PostPrepare(Key("a", 1));
  PostAbort(Key("a", 1));
  const WorkerMessage message = sent_.Next();
  EXPECT_FALSE(message.vote().yes());
  EXPECT_EQ(message.vote().no_reason(), internal::v1::CANCELLED);
  PostApply(Key("a", 1));
  EXPECT_TRUE(sent_.Next().has_refused()) << "an aborted vote was applied";
}

// A Prepare of request "hold" waits for its abort; any other votes whether it is cancelled at once.
class AskingEngine final : public Engine {
 public:
  const internal::v1::Ready& ready() const override { return ready_; }
  absl::Status AddPayload(internal::v1::PayloadChunk) override { return absl::OkStatus(); }
  void DropPayload(const std::string&) override {}
  absl::StatusOr<internal::v1::Vote> Prepare(const internal::v1::Prepare& prepare, const EngineHooks& hooks) override {
    while (prepare.key().request_id() == "hold" && !hooks.cancelled()) RealClock().Sleep(absl::Milliseconds(1));
    internal::v1::Vote vote;
    *vote.mutable_key() = prepare.key();
    vote.set_yes(!hooks.cancelled());
    return vote;
  }
  absl::StatusOr<internal::v1::Applied> Apply(const internal::v1::Apply&) override {
    return absl::InternalError("none");
  }
  void Abort(const internal::v1::StepKey&) override {}
  absl::Status LogProb(const internal::v1::LogProb&, const EngineHooks&) override {
    return absl::InternalError("none");
  }
  absl::StatusOr<internal::v1::VerifyDone> Verify(const internal::v1::Verify&, const EngineHooks&) override {
    return absl::InternalError("none");
  }
  absl::StatusOr<uint64_t> Export(const internal::v1::Export&) override { return absl::InternalError("none"); }
  absl::Status Save(const internal::v1::Save&, const SaveAnswers&) override { return absl::InternalError("none"); }

 private:
  internal::v1::Ready ready_;
};

class AskedThreadTest : public EngineThreadTest {
 protected:
  AskedThreadTest()
      : EngineThreadTest([](const internal::v1::Configure&, const WorkerIdentity&,
                            const TellStore&) -> absl::StatusOr<std::unique_ptr<Engine>> {
          return std::make_unique<AskingEngine>();
        }) {}

  // Posts the Prepare and then the abort while another step runs, so that the abort is there before the Prepare begins.
  bool VoteWithAbort(const internal::v1::StepKey& prepared, const internal::v1::StepKey& aborted) {
    PostPrepare(Key("hold", ++holds_));
    PostPrepare(prepared);
    PostAbort(aborted);
    PostAbort(Key("hold", holds_));
    EXPECT_FALSE(sent_.Next().vote().yes());
    return sent_.Next().vote().yes();
  }

  uint64_t holds_ = 0;
};

TEST_F(AskedThreadTest, AnAbortIsOfOneStepAndOneAttempt) {
  EXPECT_FALSE(VoteWithAbort(Key("a", 1, /*attempt=*/2), Key("a", 1, /*attempt=*/2)));
  EXPECT_TRUE(VoteWithAbort(Key("a", 1, /*attempt=*/3), Key("a", 1, /*attempt=*/2)));
  EXPECT_TRUE(VoteWithAbort(Key("a", 2), Key("a", 1)));
  EXPECT_TRUE(VoteWithAbort(Key("a", 1), Key("b", 1)));
}

TEST_F(AskedThreadTest, AnAbortThatWasHandledIsForgotten) {
  EXPECT_FALSE(VoteWithAbort(Key("a", 1), Key("a", 1)));
  PostPrepare(Key("a", 1));
  EXPECT_TRUE(sent_.Next().vote().yes());
}

TEST_F(EngineThreadTest, AnAbortEndsALogProbPass) {
  PostPayload("~log-prob/1", "hang");
  ServerMessage message;
  message.mutable_log_prob()->set_id("~log-prob/1");
  thread_.Post(message);
  internal::v1::StepKey key;
  key.set_request_id("~log-prob/1");
  PostAbort(key);
  EXPECT_TRUE(sent_.Next().log_prob_done().has_failure());
}

TEST_F(EngineThreadTest, ResultsComeBeforeTheEndOfTheirPass) {
  PostPayload("~log-prob/1", "g");
  ServerMessage message;
  message.mutable_log_prob()->set_id("~log-prob/1");
  thread_.Post(message);
  EXPECT_EQ(sent_.Next().results().group().uid(), "g");
  EXPECT_FALSE(sent_.Next().log_prob_done().has_failure());
}

TEST_F(EngineThreadTest, AFailedExportSaysWhy) {
  ServerMessage message;
  message.mutable_export_()->set_id("~export/1");
  message.mutable_export_()->set_name("taken");
  thread_.Post(message);
  EXPECT_EQ(sent_.Next().export_done().failure().code(), static_cast<uint32_t>(absl::StatusCode::kAlreadyExists));
}

TEST_F(EngineThreadTest, StopCancelsWhatRuns) {
  PostPayload("a", "hang");
  PostPrepare(Key("a", 1));
  while (thread_.Heartbeat().phase() != "suffix") RealClock().Sleep(absl::Milliseconds(1));
  EXPECT_TRUE(thread_.Stop(kPatience));
}

TEST_F(EngineThreadTest, IsIdleOnceTheModelIsLoaded) { EXPECT_EQ(thread_.Heartbeat().phase(), "idle"); }

// The stream is then not read, and the server held back. An abort is not.
TEST_F(AskedThreadTest, MoreMessagesThanMayWaitAreHeldBack) {
  PostPrepare(Key("hold", 1));
  absl::Notification all_posted;
  std::thread poster([&] {
    for (size_t i = 0; i < 1 + EngineThread::kMessagesMax; ++i) PostPayload("a", "g");
    all_posted.Notify();
  });
  while (thread_.Heartbeat().phase() != "prepare") RealClock().Sleep(absl::Milliseconds(1));
  EXPECT_FALSE(all_posted.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  PostAbort(Key("hold", 1));
  poster.join();
}

// The one failure that the engine thread reported.
class Failure {
 public:
  void Set(const absl::Status& status) {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(status_.ok()) << "a second one";
    status_ = status;
  }
  absl::Status Get() {
    MutexLock lock(&mutex_);
    const auto failed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !status_.ok(); };
    mutex_.AwaitWithTimeout(failed, kPatience);
    return status_;
  }

 private:
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

TEST(EngineThreadStartTest, AnEngineThatCannotBeMadeIsReported) {
  Failure failure;
  EngineThread thread(
      {"w1", ""},
      [](const internal::v1::Configure&, const WorkerIdentity&,
         const TellStore&) -> absl::StatusOr<std::unique_ptr<Engine>> { return absl::NotFoundError("no model"); },
      [](WorkerMessage) {}, [&](const absl::Status& status) { failure.Set(status); });
  thread.Post(ConfigureMessage());
  EXPECT_EQ(failure.Get(), absl::NotFoundError("no model"));
}

TEST(EngineThreadStartTest, TheStoreIsToldBeforeTheEngineIsReady) {
  Sent sent;
  EngineThread thread(
      {"w1", "192.0.2.7"},
      [](const internal::v1::Configure& configure, const WorkerIdentity& identity,
         const TellStore& tell) -> absl::StatusOr<std::unique_ptr<Engine>> {
        internal::v1::StoreOpened opened;
        opened.set_address(identity.address + ":5");
        tell(opened);
        return std::make_unique<testing::FakeEngine>(configure, identity.incarnation);
      },
      [&](WorkerMessage message) { sent.Add(std::move(message)); }, [](const absl::Status&) {});
  thread.Post(ConfigureMessage());
  EXPECT_EQ(sent.Next().store_opened().address(), "192.0.2.7:5");
  EXPECT_TRUE(sent.Next().has_ready());
}

// An engine whose end would wait for ranks that have gone.
class LeftEngine final : public testing::FakeEngine {
 public:
  using FakeEngine::FakeEngine;
  ~LeftEngine() override { ADD_FAILURE() << "destroyed"; }
};

// Where a rank has gone, the thread and what it uses are left as they are until the process ends.
class LostRankTest : public ::testing::Test {
 protected:
  struct Left {
    Sent sent;
    Failure failure;
    std::unique_ptr<EngineThread> thread;
  };

  LostRankTest() {
    left_.thread = std::make_unique<EngineThread>(
        WorkerIdentity{"w1", ""},
        [](const internal::v1::Configure& configure, const WorkerIdentity& identity,
           const TellStore&) -> absl::StatusOr<std::unique_ptr<Engine>> {
          return std::make_unique<LeftEngine>(configure, identity.incarnation);
        },
        [&left = left_](WorkerMessage message) { left.sent.Add(std::move(message)); },
        [&left = left_](const absl::Status& status) { left.failure.Set(status); });
    left_.thread->Post(ConfigureMessage());
    EXPECT_TRUE(left_.sent.Next().has_ready());
  }

  // Nothing is answered, not even what comes afterwards, and the thread says that it is to be left.
  void ExpectOver() {
    EXPECT_EQ(left_.failure.Get().code(), absl::StatusCode::kUnavailable);
    // The stream is read to its end, however much is on its way.
    for (size_t i = 0; i <= EngineThread::kMessagesMax; ++i) left_.thread->Post(PayloadMessage("b", "g"));
    left_.thread->Post(PrepareMessage(Key("b", 1)));
    EXPECT_FALSE(left_.thread->Stop(absl::InfiniteDuration()));
    EXPECT_TRUE(left_.sent.empty());
  }

  static std::vector<Left*>& Kept() {  // reachable: nothing is lost
    static auto* const kept = new std::vector<Left*>;
    return *kept;
  }
  Left& left_ = *Kept().emplace_back(new Left);
};

TEST_F(LostRankTest, FoundInAPrepareEndsTheGeneration) {
  left_.thread->Post(PayloadMessage("a", "lost"));
  left_.thread->Post(PrepareMessage(Key("a", 1)));
  ExpectOver();
}

TEST_F(LostRankTest, FoundInAnApplyEndsTheGeneration) {
  left_.thread->Post(PayloadMessage("a", "parted"));
  left_.thread->Post(PrepareMessage(Key("a", 1)));
  EXPECT_TRUE(left_.sent.Next().vote().yes());
  left_.thread->Post(ApplyMessage(Key("a", 1)));
  ExpectOver();
}

TEST_F(LostRankTest, FoundInALogProbPassEndsTheGeneration) {
  left_.thread->Post(PayloadMessage("~log-prob/1", "lost"));
  ServerMessage message;
  message.mutable_log_prob()->set_id("~log-prob/1");
  left_.thread->Post(message);
  ExpectOver();
}

TEST_F(LostRankTest, FoundInASaveEndsTheGeneration) {
  ServerMessage message;
  message.mutable_save()->set_folder("lost");
  left_.thread->Post(message);
  ExpectOver();
}

TEST_F(LostRankTest, FoundInAnExportEndsTheGeneration) {
  ServerMessage message;
  message.mutable_export_()->set_name("lost");
  left_.thread->Post(message);
  ExpectOver();
}

}  // namespace
}  // namespace stemma::worker
