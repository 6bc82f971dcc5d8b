#include "server/rpc/streaming_calls.h"

#include <utility>
#include <variant>

#include "glog/logging.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/wire.h"

namespace stemma::server {
namespace {

void EncodeChunk(const v1::GroupResult& chunk, grpc::ByteBuffer& bytes) {
  const grpc::Status encoded = Encode(chunk, bytes);
  CHECK(encoded.ok()) << encoded.error_message();  // chunks are small (protocol/payload_chunks.h)
}

grpc::Status ClientLeft() { return grpc::Status(grpc::StatusCode::CANCELLED, "the client left"); }

}  // namespace

LossCall::LossCall(TrainingRequest::Kind kind, Coordinator& coordinator, const RequestRules& rules,
                   grpc::ByteBuffer* response)
    : request_(coordinator),
      reader_(
          kind, rules,
          {.start_read = [this](grpc::ByteBuffer* part) { StartRead(part); },
           .refuse = [this](const absl::Status& status) { FinishOnce(ToGrpcStatus(status)); },
           .submit =
               [this](std::shared_ptr<const TrainingRequest> request) { request_.Submit(self_, std::move(request)); }}),
      response_(response) {}

grpc::ServerReadReactor<grpc::ByteBuffer>* LossCall::Start(TrainingRequest::Kind kind, Coordinator& coordinator,
                                                           const RequestRules& rules, grpc::ByteBuffer* response) {
  auto call = std::make_shared<LossCall>(kind, coordinator, rules, response);
  call->self_ = call;
  call->reader_.Start(call);
  return call.get();
}

void LossCall::OnCancel() {
  reader_.Abandon();
  request_.ClientLeft();
  FinishOnce(ClientLeft());
}

void LossCall::OnChunk(std::shared_ptr<const v1::GroupResult>) { LOG(FATAL) << "a call with one answer has no chunks"; }

void LossCall::OnReply(Reply reply) {
  if (finished_.exchange(true)) return;
  if (const auto* status = std::get_if<absl::Status>(&reply)) return Finish(ToGrpcStatus(*status));
  if (const auto* found = std::get_if<v1::VerifyGroupResponse>(&reply)) return Finish(Encode(*found, *response_));
  Finish(Encode(std::get<v1::RequestStatus>(reply), *response_));
}

void LossCall::FinishOnce(const grpc::Status& status) {
  if (!finished_.exchange(true)) Finish(status);
}

LogProbCall::LogProbCall(Coordinator& coordinator, const RequestRules& rules, grpc::CallbackServerContext* context)
    : request_(coordinator),
      reader_(
          TrainingRequest::Kind::kLogProb, rules,
          {.start_read = [this](grpc::ByteBuffer* part) { StartRead(part); },
           .refuse = [this](const absl::Status& status) { stream_.End(status); },
           .submit =
               [this](std::shared_ptr<const TrainingRequest> request) { request_.Submit(self_, std::move(request)); }}),
      stream_(context, rules.limits.stream_idle_ms(),
              {.write = [this](const v1::GroupResult* chunk) { Write(*chunk); },
               .finish = [this](const grpc::Status& status) { Finish(status); }}) {}

void LogProbCall::Write(const v1::GroupResult& chunk) {
  EncodeChunk(chunk, chunk_);
  StartWrite(&chunk_);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* LogProbCall::Start(Coordinator& coordinator,
                                                                                const RequestRules& rules,
                                                                                grpc::CallbackServerContext* context) {
  auto call = std::make_shared<LogProbCall>(coordinator, rules, context);
  call->self_ = call;
  call->stream_.Start(call);
  call->reader_.Start(call);
  return call.get();
}

void LogProbCall::OnCancel() {
  reader_.Abandon();
  request_.ClientLeft();
  stream_.Abandon(ClientLeft());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadResultsCall::Start(Coordinator& coordinator, uint64_t idle_ms,
                                                                   grpc::CallbackServerContext* context,
                                                                   const grpc::ByteBuffer& request) {
  auto call = std::make_shared<ReadResultsCall>(coordinator, idle_ms, context);
  call->self_ = call;
  call->stream_.Start(call);
  grpc::ServerWriteReactor<grpc::ByteBuffer>* reactor = call.get();
  v1::ReadResultsRequest asked;
  if (const absl::Status decoded = DecodeRequest(request, kQueryBytesMax, asked); !decoded.ok()) {
    call->stream_.End(decoded);
    return reactor;
  }
  call->call_ = coordinator.Call(call, [&](CallId id) { return ReadResultsEvent{id, asked.request_id()}; });
  return reactor;
}

void ReadResultsCall::Write(const v1::GroupResult& chunk) {
  EncodeChunk(chunk, chunk_);
  StartWrite(&chunk_);
}

void ReadResultsCall::OnCancel() {
  coordinator_.CallGone(call_);
  stream_.Abandon(ClientLeft());
}

}  // namespace stemma::server
