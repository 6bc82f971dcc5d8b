// One unary call: an event to the coordinator, its reply back to the client.
//
// Lifetime: holds itself until OnDone; the coordinator holds it until it is answered. Finishes on every path: by the
// reply, or by OnCancel.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "glog/logging.h"
#include "grpcpp/support/server_callback.h"
#include "server/coordinator/coordinator.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/wire.h"

namespace stemma::server {

template <typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor, public ClientCall {
 public:
  static grpc::ServerUnaryReactor* Start(Coordinator& coordinator, grpc::ByteBuffer* response,
                                         const std::function<Event(CallId)>& make_event) {
    auto call = std::make_shared<UnaryCall>(coordinator, response);
    call->self_ = call;
    grpc::ServerUnaryReactor* reactor = call.get();
    call->call_ = coordinator.Call(call, make_event);
    return reactor;
  }

  UnaryCall(Coordinator& coordinator, grpc::ByteBuffer* response) : coordinator_(coordinator), response_(response) {}

  void OnChunk(std::shared_ptr<const v1::GroupResult>) override { LOG(FATAL) << "a unary call has no chunks"; }
  void OnReply(Reply reply) override {
    if (finished_.exchange(true)) return;
    if (const auto* status = std::get_if<absl::Status>(&reply)) return Finish(ToGrpcStatus(*status));
    Finish(Encode(std::get<Response>(reply), *response_));
  }

  void OnCancel() override {
    coordinator_.CallGone(call_);
    if (!finished_.exchange(true)) Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client left"));
  }
  void OnDone() override { self_.reset(); }

 private:
  Coordinator& coordinator_;
  grpc::ByteBuffer* const response_;
  std::atomic<CallId> call_ = 0;
  std::atomic<bool> finished_ = false;
  std::shared_ptr<UnaryCall> self_;
};

}  // namespace stemma::server
