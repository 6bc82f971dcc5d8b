// A Save through the engine thread: its two answers, a refusal, the phase.
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/worker/rpc/engine_thread_fixture.h"

namespace stemma::worker {
namespace {

using SaveTest = EngineThreadTest;

// The second answer comes from a thread of the engine's own, in any order with what the engine thread sends.
TEST_F(SaveTest, ASaveIsAnsweredTwiceInItsOrder) {
  ServerMessage message;
  message.mutable_save()->set_id("s");
  message.mutable_save()->set_folder("c");
  thread_.Post(message);
  PostPayload("a", "g");
  PostPrepare(Key("a", 1));
  bool staged = false, done = false, voted = false;
  for (int i = 0; i < 3; ++i) {
    const WorkerMessage answer = sent_.Next();
    if (answer.has_save_staged()) {
      EXPECT_EQ(answer.save_staged().id(), "s");
      EXPECT_EQ(answer.save_staged().staged_bytes(), 7u);
      EXPECT_FALSE(voted || done || answer.save_staged().has_failure());
      staged = true;
    } else if (answer.has_save_done()) {
      EXPECT_EQ(answer.save_done().id(), "s");
      EXPECT_EQ(answer.save_done().weights_digest(), "fake");
      EXPECT_TRUE(staged);
      done = true;
    } else {
      voted = answer.vote().yes();
    }
  }
  EXPECT_TRUE(done && voted);
}

TEST_F(SaveTest, ASaveThatIsRefusedIsAnsweredOnce) {
  ServerMessage message;
  message.mutable_save()->set_id("s");
  message.mutable_save()->set_folder("refuse");
  thread_.Post(message);
  PostPayload("a", "g");
  PostPrepare(Key("a", 1));
  const WorkerMessage answer = sent_.Next();
  EXPECT_EQ(answer.save_staged().id(), "s");
  EXPECT_EQ(answer.save_staged().failure().message(), "told to refuse");
  EXPECT_TRUE(sent_.Next().vote().yes());
  EXPECT_TRUE(sent_.empty());
}

TEST(SavePhaseTest, TheHeartbeatTellsOfIt) {
  Sent sent;
  std::string phase;
  std::unique_ptr<EngineThread> thread;
  const auto send = [&](WorkerMessage message) {
    if (message.has_save_staged()) phase = thread->Heartbeat().phase();
    sent.Add(std::move(message));
  };
  thread = std::make_unique<EngineThread>(WorkerIdentity{"w1", ""}, testing::CreateFakeEngine, send,
                                          [](const absl::Status&) {});
  thread->Post(ConfigureMessage());
  ServerMessage message;
  message.mutable_save()->set_folder("c");
  thread->Post(message);
  EXPECT_TRUE(sent.Next().has_ready());
  EXPECT_TRUE(sent.Next().has_save_staged());
  EXPECT_EQ(phase, "checkpoint");
  EXPECT_TRUE(sent.Next().has_save_done());
  while (thread->Heartbeat().phase() != "idle") RealClock().Sleep(absl::Milliseconds(1));
}

}  // namespace
}  // namespace stemma::worker
