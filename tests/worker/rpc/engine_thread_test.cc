// The engine thread with the fake engine: order, answers, aborts that overtake, refusals.
#include "worker/rpc/engine_thread.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_worker/fake_engine.h"

namespace stemma::worker {
namespace {

using internal::v1::ServerMessage;
using internal::v1::WorkerMessage;

constexpr absl::Duration kPatience = absl::Seconds(60);

// What the engine thread sent, in order.
class Sent {
 public:
  void Add(WorkerMessage message) {
    MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
  }
  WorkerMessage Next() {
    MutexLock lock(&mutex_);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); };
    if (!mutex_.AwaitWithTimeout(some, kPatience)) return {};
    WorkerMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  Mutex mutex_;
  std::deque<WorkerMessage> messages_ ABSL_GUARDED_BY(mutex_);
};

internal::v1::StepKey Key(const std::string& id, uint64_t step, uint32_t attempt = 1) {
  internal::v1::StepKey key;
  key.set_epoch(3);
  key.set_incarnation("w1");
  key.set_generation(1);
  key.set_step(step);
  key.set_attempt(attempt);
  key.set_request_id(id);
  return key;
}

class EngineThreadTest : public ::testing::Test {
 protected:
  explicit EngineThreadTest(EngineFactory factory = testing::CreateFakeEngine)
      : thread_(
            "w1", std::move(factory), [this](WorkerMessage message) { sent_.Add(std::move(message)); },
            [](const absl::Status&) {}) {
    ServerMessage message;
    message.mutable_configure()->set_epoch(3);
    message.mutable_configure()->set_generation(1);
    thread_.Post(message);
    EXPECT_TRUE(sent_.Next().has_ready());
  }

  void PostPayload(const std::string& id, const std::string& uid) {
    ServerMessage message;
    message.mutable_payload()->set_id(id);
    message.mutable_payload()->add_groups()->set_uid(uid);
    message.mutable_payload()->set_last(true);
    thread_.Post(message);
  }
  void PostPrepare(const internal::v1::StepKey& key) {
    ServerMessage message;
    *message.mutable_prepare()->mutable_key() = key;
    message.mutable_prepare()->mutable_plan()->add_groups(0);
    thread_.Post(message);
  }
  void PostApply(const internal::v1::StepKey& key) {
    ServerMessage message;
    *message.mutable_apply()->mutable_key() = key;
    thread_.Post(message);
  }
  void PostAbort(const internal::v1::StepKey& key) {
    ServerMessage message;
    *message.mutable_abort()->mutable_key() = key;
    thread_.Post(message);
  }

  Sent sent_;
  EngineThread thread_;
};

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
  absl::StatusOr<uint64_t> Export(const internal::v1::Export&) override { return absl::InternalError("none"); }

 private:
  internal::v1::Ready ready_;
};

class AskedThreadTest : public EngineThreadTest {
 protected:
  AskedThreadTest()
      : EngineThreadTest(
            [](const internal::v1::Configure&, const std::string&) -> absl::StatusOr<std::unique_ptr<Engine>> {
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
  EXPECT_TRUE(thread_.Stop(kPatience));
}

TEST(EngineThreadStartTest, AnEngineThatCannotBeMadeIsReported) {
  Mutex mutex;
  absl::Status failure;
  EngineThread thread(
      "w1",
      [](const internal::v1::Configure&, const std::string&) -> absl::StatusOr<std::unique_ptr<Engine>> {
        return absl::NotFoundError("no model");
      },
      [](WorkerMessage) {},
      [&](const absl::Status& status) {
        MutexLock lock(&mutex);
        failure = status;
      });
  ServerMessage message;
  message.mutable_configure();
  thread.Post(message);
  MutexLock lock(&mutex);
  const auto failed = [&] { return !failure.ok(); };
  EXPECT_TRUE(mutex.AwaitWithTimeout(failed, kPatience));
}

}  // namespace
}  // namespace stemma::worker
