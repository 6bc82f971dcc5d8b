#include "server/rpc/worker_service.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/worker_secret.h"
#include "glog/logging.h"
#include "server/rpc/grpc_status.h"

namespace stemma::server {
namespace {

using Reactor = grpc::ServerBidiReactor<internal::v1::WorkerMessage, internal::v1::ServerMessage>;

constexpr char kSecretKey[] = "authorization";
constexpr char kSecretPrefix[] = "Bearer ";

bool SendsSecret(const grpc::CallbackServerContext& context) { return context.client_metadata().count(kSecretKey) > 0; }

// Ends a stream before anything of it is read. Says so when it is over: not before is it known whether the stream sent
// no secret, or its connection was cut in the middle of its headers, which gRPC then takes for all of them.
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
    if (context_.IsCancelled() && !SendsSecret(context_)) {
      LOG(INFO) << "a worker's stream from " << context_.peer() << " ended before its secret came" << left_out;
    } else {
      LOG(WARNING) << "a worker's stream from " << context_.peer() << " is refused: " << why_.message() << left_out;
    }
  }

  const grpc::CallbackServerContext& context_;  // gRPC's, until OnDone has returned
  const absl::Status why_;
  LogLimit& limit_;  // the service's, which outlives its streams
};

// OK, or what is wrong with how the stream was opened.
absl::Status CheckSecret(const grpc::CallbackServerContext& context, const std::string& secret) {
  const auto [first, last] = context.client_metadata().equal_range(kSecretKey);
  if (first == last) return absl::UnauthenticatedError("a worker's stream needs the secret, and this one sends none");
  const std::string expected = absl::StrCat(kSecretPrefix, secret);
  if (std::next(first) == last && SameSecret({first->second.data(), first->second.size()}, expected)) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError("the worker's secret is not the server's");
}

}  // namespace

Reactor* WorkerServiceRpc::Session(grpc::CallbackServerContext* context) {
  if (const absl::Status status = CheckSecret(*context, secret_); !status.ok()) {
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
