// What tests of the coordinator's thread share: a call that waits for its answer, and a worker that carries out what it
// is told. Safe under TSan.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/flag.h"
#include "glog/logging.h"
#include "server/coordinator/coordinator.h"

namespace stemma::server {

inline constexpr absl::Duration kPatience = absl::Seconds(60);

inline absl::StatusOr<RequestPlan> OneStepPlan(const TrainingRequest&, const v1::RunConfig&, const Rates&,
                                               const StopCheck&) {
  RequestPlan plan;
  plan.plan.add_steps()->add_clusters();
  plan.report.add_steps();
  plan.steps.emplace_back();
  return plan;
}

inline std::shared_ptr<const TrainingRequest> Request(const std::string& id) {
  auto request = std::make_shared<TrainingRequest>();
  request->update.mutable_request()->set_request_id(id);
  request->groups.emplace_back();
  return request;
}

class Waiting final : public ClientCall {
 public:
  void OnChunk(std::shared_ptr<const v1::GroupResult>) override {}
  void OnReply(Reply reply) override {
    reply_ = std::move(reply);
    done_.Set();
  }
  Reply& Get() {
    CHECK(done_.AwaitWithin(kPatience)) << "no answer";
    return reply_;
  }
  bool done() const { return done_.is_set(); }

 private:
  Reply reply_;
  Flag done_;
};

// Votes yes and applies at once, from the coordinator's thread; can be told to stay silent.
class EchoWorker final : public WorkerLink {
 public:
  explicit EchoWorker(Coordinator& coordinator) : coordinator_(coordinator) {}

  void Connect(std::shared_ptr<WorkerLink> self) {
    session_ = coordinator_.OpenSession(std::move(self));
    internal::v1::WorkerMessage message;
    message.mutable_register_()->set_incarnation("w1");
    message.mutable_register_()->set_memory_free_bytes(1000);
    coordinator_.WorkerMessage(session_, message);
  }
  void Say() {
    internal::v1::WorkerMessage message;
    message.mutable_heartbeat();
    coordinator_.WorkerMessage(session_, message);
  }
  void Lose() { coordinator_.WorkerLost(session_, "the test says so"); }
  void set_silent() { silent_ = true; }
  void WaitForPrepare() { CHECK(prepared_.AwaitWithin(kPatience)); }

  void Send(internal::v1::ServerMessage message) override {
    internal::v1::WorkerMessage answer;
    if (message.has_configure()) {
      answer.mutable_ready();
    } else if (message.has_prepare()) {
      if (!prepared_.is_set()) prepared_.Set();
      *answer.mutable_vote()->mutable_key() = message.prepare().key();
      answer.mutable_vote()->set_yes(true);
    } else if (message.has_apply()) {
      *answer.mutable_applied()->mutable_key() = message.apply().key();
    } else {
      return;
    }
    if (!silent_ || message.has_configure()) coordinator_.WorkerMessage(session_, std::move(answer));
  }
  using Groups = std::vector<uint32_t>;
  void SendPayload(const std::string&, std::shared_ptr<const TrainingRequest>, Groups) override { ++payloads_; }
  void ReadNext() override { ++reads_; }
  void Close(const absl::Status&) override {}
  int payloads() const { return payloads_; }

 private:
  Coordinator& coordinator_;
  std::atomic<SessionId> session_ = 0;
  std::atomic<bool> silent_ = false;
  std::atomic<int> payloads_ = 0, reads_ = 0;
  Flag prepared_;
};

}  // namespace stemma::server
