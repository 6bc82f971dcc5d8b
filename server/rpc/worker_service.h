// WorkerService: one stream per worker, its messages to the coordinator, the coordinator's to it.
//
// A stream opens with a proof of the secret in its metadata, for which its worker has asked before, and heard the
// server's own (common/base/worker_proof.h). Without it nothing is read: the stream ends with UNAUTHENTICATED, and a
// line in the log names the peer.
//
// What is sent waits in a queue; a payload in it is cut into chunks one at a time, as the stream takes them, so that it
// exists once.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "server/coordinator/coordinator.h"
#include "server/protocol/payload_chunks.h"
#include "server/rpc/worker_challenges.h"
#include "stemma/internal/v1/worker.grpc.pb.h"

namespace stemma::server {

class WorkerServiceRpc final : public internal::v1::WorkerService::CallbackService {
 public:
  WorkerServiceRpc(Coordinator& coordinator, std::string secret)
      : coordinator_(coordinator), challenges_(std::move(secret)) {}

  grpc::ServerBidiReactor<internal::v1::WorkerMessage, internal::v1::ServerMessage>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  Coordinator& coordinator_;
  WorkerChallenges challenges_;
  LogLimit refusals_ = LogLimit(20);
};

class WorkerSession final : public grpc::ServerBidiReactor<internal::v1::WorkerMessage, internal::v1::ServerMessage>,
                            public WorkerLink {
 public:
  static WorkerSession* Start(Coordinator& coordinator);
  explicit WorkerSession(Coordinator& coordinator) : coordinator_(coordinator) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { Lose("its connection ended: the process ended, or the network failed"); }
  void OnDone() override { self_.reset(); }

  void Send(internal::v1::ServerMessage message) override;
  void SendPayload(const std::string& id, std::shared_ptr<const TrainingRequest> request,
                   std::vector<uint32_t> groups) override;
  void ReadNext() override;
  void Close(const absl::Status& status) override;

 private:
  void Lose(const std::string& reason);
  void FinishOnce(const grpc::Status& status);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Coordinator& coordinator_;
  SessionId session_ = 0;                 // set once, before the first read
  internal::v1::WorkerMessage incoming_;  // of the one read under way
  Mutex mutex_;
  std::deque<std::variant<internal::v1::ServerMessage, PayloadChunks>> outgoing_ ABSL_GUARDED_BY(mutex_);
  internal::v1::ServerMessage writing_message_;  // of the one write under way
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<WorkerSession> self_;
};

}  // namespace stemma::server
