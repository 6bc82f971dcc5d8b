// Saves of checkpoints that fail are counted, whoever they fail for.
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/protocol/coordinator_state.h"

namespace stemma::server {
namespace {

constexpr SessionId kSavesFailedSession = 1;

class SavesFailedTest : public ::testing::Test {
 protected:
  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.lineage_prefix = "L";
    options.keeps_files = true;
    options.worker_stalled_after = absl::Seconds(30);
    v1::Limits& limits = *options.config.mutable_limits();
    limits.set_requests_in_flight(8);
    limits.set_request_bytes_in_flight(1000);
    return options;
  }

  void SetUp() override {
    Handle(StartEvent{});
    WorkerMessageEvent event = {.session = kSavesFailedSession, .message = {}};
    event.message.mutable_register_()->set_incarnation("w");
    event.message.mutable_register_()->set_memory_free_bytes(1000);
    Handle(event);
    event.message.mutable_ready();
    Handle(event);
  }

  void Handle(const Event& event) { state_.Handle(now_, event); }

  void Save(CallId call, const std::string& name) {
    SaveCheckpointEvent event = {.call = call, .request = {}};
    event.request.set_name(name);
    Handle(event);
  }

  // The disk answers nothing meanwhile; the worker's heartbeats come.
  void Pass(int seconds) {
    WorkerMessageEvent heartbeat = {.session = kSavesFailedSession, .message = {}};
    heartbeat.message.mutable_heartbeat();
    for (int second = 0; second < seconds; ++second) {
      now_ += absl::Seconds(1);
      Handle(heartbeat);
      Handle(TickEvent{});
    }
  }

  uint64_t failed() const { return state_.Numbers().checkpoint_saves_failed; }

  CoordinatorState state_{Options()};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(SavesFailedTest, OneWhoseWorkersAreLostIsCounted) {
  Save(10, "a");
  EXPECT_EQ(failed(), 0u);
  Handle(WorkerLostEvent{kSavesFailedSession, "it died"});
  EXPECT_EQ(failed(), 1u);
}

TEST_F(SavesFailedTest, OneThatTheDiskHoldsUpIsCountedAndSoIsEachThatCannotBeginBehindIt) {
  Save(10, "a");
  Pass(29);
  EXPECT_EQ(failed(), 0u);
  Pass(3);
  EXPECT_EQ(failed(), 1u);
  Save(11, "b");
  EXPECT_EQ(failed(), 2u);
}

}  // namespace
}  // namespace stemma::server
