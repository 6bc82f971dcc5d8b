#include "server/rpc/worker_service.h"

#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/steady_time.h"
#include "common/base/worker_proof.h"
#include "glog/logging.h"
#include "server/rpc/grpc_status.h"

namespace stemma::server {
namespace {

using Reactor = grpc::ServerBidiReactor<internal::v1::WorkerMessage, internal::v1::ServerMessage>;

// Returns what a stream was opened with; nullopt: not that, or several of it.
std::optional<std::string> MetadataOf(const grpc::CallbackServerContext& context, const char* key) {
  const auto [first, last] = context.client_metadata().equal_range(key);
  if (first == last || std::next(first) != last) return std::nullopt;
  return std::string(first->second.data(), first->second.size());
}

bool SendsNonce(const grpc::CallbackServerContext& context) {
  return context.client_metadata().count(kNonceMetadata) > 0;
}

// Ends a stream before anything of it is read. Says so when it is over: not before is it known whether the stream sent
// no nonce, or its connection was cut in the middle of its headers, which gRPC then takes for all of them.
class RefusedSession final : public Reactor {
 public:
  RefusedSession(const grpc::CallbackServerContext& context, const absl::Status& why, LogLimit& limit)
      : context_(context), why_(why), limit_(limit) {
    Finish(ToGrpcStatus(why));
  }
  void OnDone() override {
    if (limit_.Take(SteadyNow(RealClock()))) Say(limit_.LeftOut());
    delete this;
  }

 private:
  void Say(const std::string& left_out) const {
    if (context_.IsCancelled() && !SendsNonce(context_)) {
      LOG(INFO) << "a worker's stream from " << context_.peer() << " ended before its proof came" << left_out;
    } else {
      LOG(WARNING) << "a worker's stream from " << context_.peer() << " is refused: " << why_.message() << left_out;
    }
  }

  const grpc::CallbackServerContext& context_;  // gRPC's, until OnDone has returned
  const absl::Status why_;
  LogLimit& limit_;  // the service's, which outlives its streams
};

// Ends a stream that asked for the server's proof.
class AnsweredSession final : public Reactor {
 public:
  AnsweredSession(grpc::CallbackServerContext& context, const WorkerChallenges::Challenge& challenge) {
    context.AddTrailingMetadata(kNonceMetadata, challenge.nonce);
    context.AddTrailingMetadata(kProofMetadata, challenge.proof);
    Finish(ToGrpcStatus(absl::UnauthenticatedError("prove that you have the workers' secret")));
  }
  void OnDone() override { delete this; }
};

}  // namespace

Reactor* WorkerServiceRpc::Session(grpc::CallbackServerContext* context) {
  const std::optional<std::string> nonce = MetadataOf(*context, kNonceMetadata);
  if (!nonce || !IsNonce(*nonce)) {
    const absl::Status why = absl::UnauthenticatedError("a worker's stream needs a nonce, and this one sends none");
    return new RefusedSession(*context, why, refusals_);
  }
  const absl::Time now = SteadyNow(RealClock());
  if (context->client_metadata().count(kProofMetadata) == 0) {
    return new AnsweredSession(*context, challenges_.Make(*nonce, now));
  }
  const std::string proof = MetadataOf(*context, kProofMetadata).value_or("");
  if (const absl::Status status = challenges_.Take(*nonce, proof, now); !status.ok()) {
    return new RefusedSession(*context, status, refusals_);
  }
  return WorkerSession::Start(coordinator_);
}

WorkerSession* WorkerSession::Start(Coordinator& coordinator) {
  auto session = std::make_shared<WorkerSession>(coordinator);
  session->self_ = session;
  session->session_ = coordinator.OpenSession(session);
  session->StartRead(&session->incoming_);
  return session.get();
}

void WorkerSession::OnReadDone(bool ok) {
  if (!ok) return Lose("its connection ended: the process ended, or the network failed");
  coordinator_.WorkerMessage(session_, std::move(incoming_));
}

void WorkerSession::ReadNext() {
  MutexLock lock(&mutex_);
  if (finished_) return;
  incoming_.Clear();
  StartRead(&incoming_);
}

void WorkerSession::Send(internal::v1::ServerMessage message) {
  MutexLock lock(&mutex_);
  outgoing_.emplace_back(std::move(message));
  WriteNext();
}

void WorkerSession::SendPayload(const std::string& id, std::shared_ptr<const TrainingRequest> request,
                                std::vector<uint32_t> groups) {
  MutexLock lock(&mutex_);
  outgoing_.emplace_back(PayloadChunks(id, std::move(request), std::move(groups)));
  WriteNext();
}

void WorkerSession::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  writing_ = false;
  if (ok) WriteNext();  // else the read ends too
}

void WorkerSession::WriteNext() {
  if (finished_ || writing_ || outgoing_.empty()) return;
  if (auto* message = std::get_if<internal::v1::ServerMessage>(&outgoing_.front())) {
    writing_message_ = std::move(*message);
    outgoing_.pop_front();
  } else {
    PayloadChunks& chunks = std::get<PayloadChunks>(outgoing_.front());
    writing_message_.Clear();
    *writing_message_.mutable_payload() = chunks.Next();
    if (chunks.done()) outgoing_.pop_front();
  }
  writing_ = true;
  StartWrite(&writing_message_);
}

void WorkerSession::Close(const absl::Status& status) { FinishOnce(ToGrpcStatus(status)); }

void WorkerSession::Lose(const std::string& reason) {
  coordinator_.WorkerLost(session_, reason);
  FinishOnce(grpc::Status::OK);
}

void WorkerSession::FinishOnce(const grpc::Status& status) {
  MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  outgoing_.clear();
  Finish(status);
}

}  // namespace stemma::server
