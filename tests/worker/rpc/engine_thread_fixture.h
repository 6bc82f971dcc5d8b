// An engine thread with the fake engine, what is posted to it, and what it sends.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/testing/fake_worker/fake_engine.h"
#include "worker/rpc/engine_thread.h"

namespace stemma::worker {

using internal::v1::ServerMessage;
using internal::v1::WorkerMessage;

inline constexpr absl::Duration kPatience = absl::Seconds(60);

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
  bool empty() {
    MutexLock lock(&mutex_);
    return messages_.empty();
  }

 private:
  Mutex mutex_;
  std::deque<WorkerMessage> messages_ ABSL_GUARDED_BY(mutex_);
};

inline internal::v1::StepKey Key(const std::string& id, uint64_t step, uint32_t attempt = 1) {
  internal::v1::StepKey key;
  key.set_epoch(3);
  key.set_incarnation("w1");
  key.set_generation(1);
  key.set_step(step);
  key.set_attempt(attempt);
  key.set_request_id(id);
  return key;
}

inline ServerMessage ConfigureMessage() {
  ServerMessage message;
  message.mutable_configure()->set_epoch(3);
  message.mutable_configure()->set_generation(1);
  return message;
}

inline ServerMessage PayloadMessage(const std::string& id, const std::string& uid) {
  ServerMessage message;
  message.mutable_payload()->set_id(id);
  message.mutable_payload()->add_groups()->set_uid(uid);
  message.mutable_payload()->add_group_indices(0);
  message.mutable_payload()->set_last(true);
  return message;
}

inline ServerMessage PrepareMessage(const internal::v1::StepKey& key) {
  ServerMessage message;
  *message.mutable_prepare()->mutable_key() = key;
  message.mutable_prepare()->mutable_plan()->add_groups(0);
  return message;
}

inline ServerMessage ApplyMessage(const internal::v1::StepKey& key) {
  ServerMessage message;
  *message.mutable_apply()->mutable_key() = key;
  return message;
}

class EngineThreadTest : public ::testing::Test {
 protected:
  explicit EngineThreadTest(EngineFactory factory = testing::CreateFakeEngine)
      : thread_(
            {"w1", ""}, std::move(factory), [this](WorkerMessage message) { sent_.Add(std::move(message)); },
            [](const absl::Status&) {}) {
    thread_.Post(ConfigureMessage());
    EXPECT_TRUE(sent_.Next().has_ready());
  }

  void PostPayload(const std::string& id, const std::string& uid) { thread_.Post(PayloadMessage(id, uid)); }
  void PostPrepare(const internal::v1::StepKey& key) { thread_.Post(PrepareMessage(key)); }
  void PostApply(const internal::v1::StepKey& key) { thread_.Post(ApplyMessage(key)); }
  void PostAbort(const internal::v1::StepKey& key) {
    ServerMessage message;
    *message.mutable_abort()->mutable_key() = key;
    thread_.Post(message);
  }

  Sent sent_;
  EngineThread thread_;
};

}  // namespace stemma::worker
