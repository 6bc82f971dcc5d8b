#include "server/rpc/training_service.h"

#include <algorithm>
#include <optional>

#include "common/admission/known_fields.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/streaming_calls.h"
#include "server/rpc/unary_call.h"

namespace stemma::server {
namespace {

// Refuses unknown fields, in a small call that changes something. Queries ignore what they do not know, so that a newer
// client can ask what this server is.
absl::Status CheckKnown(const google::protobuf::Message& request) {
  Violations violations;
  CheckKnownFields(request, "", violations);
  return violations.empty() ? absl::OkStatus() : violations.ToStatus();
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext& context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// A call as gRPC has it.
struct RawCall {
  grpc::CallbackServerContext& context;
  const grpc::ByteBuffer& request;
  grpc::ByteBuffer* response;
  size_t bytes_max = kQueryBytesMax;
};

// Starts a call. `make_event`: (call, request).
template <typename Request, typename Response, typename MakeEvent>
grpc::ServerUnaryReactor* StartCall(Coordinator& coordinator, const RawCall& call, bool changes_something,
                                    const MakeEvent& make_event) {
  Request request;
  absl::Status valid = DecodeRequest(call.request, call.bytes_max, request);
  if (valid.ok() && changes_something) valid = CheckKnown(request);
  if (!valid.ok()) return Refuse(call.context, valid);
  return UnaryCall<Response>::Start(coordinator, call.response,
                                    [&](CallId id) -> Event { return make_event(id, request); });
}

template <typename Request, typename Response, typename MakeEvent>
grpc::ServerUnaryReactor* Query(Coordinator& coordinator, const RawCall& call, const MakeEvent& make_event) {
  return StartCall<Request, Response>(coordinator, call, /*changes_something=*/false, make_event);
}

template <typename Request, typename Response, typename MakeEvent>
grpc::ServerUnaryReactor* Command(Coordinator& coordinator, const RawCall& call, const MakeEvent& make_event) {
  return StartCall<Request, Response>(coordinator, call, /*changes_something=*/true, make_event);
}

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* TrainingServiceRpc::UpdateActor(grpc::CallbackServerContext*,
                                                                           grpc::ByteBuffer* response) {
  return LossCall::Start(TrainingRequest::Kind::kUpdate, coordinator_, rules(), response);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* TrainingServiceRpc::VerifyGroup(grpc::CallbackServerContext*,
                                                                           grpc::ByteBuffer* response) {
  return LossCall::Start(TrainingRequest::Kind::kVerify, coordinator_, rules(), response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* TrainingServiceRpc::ComputeLogProb(
    grpc::CallbackServerContext* context) {
  return LogProbCall::Start(coordinator_, rules(), context);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* TrainingServiceRpc::ReadResults(grpc::CallbackServerContext* context,
                                                                            const grpc::ByteBuffer* request) {
  return ReadResultsCall::Start(coordinator_, limits_.stream_idle_ms(), context, *request);
}

grpc::ServerUnaryReactor* TrainingServiceRpc::GetRequest(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Query<v1::GetRequestRequest, v1::RequestStatus>(
      coordinator_, {*context, *request, response}, [](CallId call, const v1::GetRequestRequest& asked) {
        std::optional<absl::Duration> wait;
        if (asked.has_wait_ms()) wait = absl::Milliseconds(std::min<uint64_t>(asked.wait_ms(), 1ull << 40));
        return GetRequestEvent{call, asked.request_id(), wait};
      });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::GetServerInfo(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response) {
  return Query<v1::GetServerInfoRequest, v1::ServerInfo>(
      coordinator_, {*context, *bytes, response},
      [](CallId call, const v1::GetServerInfoRequest&) { return GetServerInfoEvent{call}; });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::GetModel(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response) {
  return Query<v1::GetModelRequest, v1::ModelInfo>(
      coordinator_, {*context, *bytes, response},
      [](CallId call, const v1::GetModelRequest&) { return GetModelEvent{call}; });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::ListRequests(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response) {
  return Query<v1::ListRequestsRequest, v1::ListRequestsResponse>(
      coordinator_, {*context, *bytes, response},
      [](CallId call, const v1::ListRequestsRequest&) { return ListRequestsEvent{call}; });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::CancelRequest(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response) {
  return Command<v1::CancelRequestRequest, v1::RequestStatus>(coordinator_, {*context, *bytes, response},
                                                              [](CallId call, const v1::CancelRequestRequest& request) {
                                                                return CancelEvent{call, request.request_id()};
                                                              });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::ExportWeights(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response) {
  return Command<v1::ExportWeightsRequest, v1::ExportWeightsResponse>(
      coordinator_, {*context, *bytes, response}, [](CallId call, const v1::ExportWeightsRequest& request) {
        return ExportEvent{call, request};
      });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::DeleteExport(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response) {
  return Command<v1::DeleteExportRequest, v1::DeleteExportResponse>(
      coordinator_, {*context, *bytes, response}, [](CallId call, const v1::DeleteExportRequest& request) {
        return DeleteExportEvent{call, request.name()};
      });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::SaveCheckpoint(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* bytes,
                                                             grpc::ByteBuffer* response) {
  return Command<v1::SaveCheckpointRequest, v1::Checkpoint>(coordinator_, {*context, *bytes, response, kSaveBytesMax},
                                                            [](CallId call, const v1::SaveCheckpointRequest& request) {
                                                              return SaveCheckpointEvent{call, request};
                                                            });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::LoadCheckpoint(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* bytes,
                                                             grpc::ByteBuffer* response) {
  return Command<v1::LoadCheckpointRequest, v1::LoadCheckpointResponse>(
      coordinator_, {*context, *bytes, response}, [](CallId call, const v1::LoadCheckpointRequest& request) {
        return LoadCheckpointEvent{call, request};
      });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::ListCheckpoints(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* bytes,
                                                              grpc::ByteBuffer* response) {
  return Query<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>(
      coordinator_, {*context, *bytes, response},
      [](CallId call, const v1::ListCheckpointsRequest&) { return ListCheckpointsEvent{call}; });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::VerifyCheckpoint(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* bytes,
                                                               grpc::ByteBuffer* response) {
  return Query<v1::VerifyCheckpointRequest, v1::Checkpoint>(
      coordinator_, {*context, *bytes, response}, [](CallId call, const v1::VerifyCheckpointRequest& request) {
        return VerifyCheckpointEvent{call, request.name()};
      });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::PinCheckpoint(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response) {
  return Command<v1::PinCheckpointRequest, v1::Checkpoint>(
      coordinator_, {*context, *bytes, response}, [](CallId call, const v1::PinCheckpointRequest& request) {
        return PinCheckpointEvent{call, request.name(), request.pinned()};
      });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::DeleteCheckpoint(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* bytes,
                                                               grpc::ByteBuffer* response) {
  return Command<v1::DeleteCheckpointRequest, v1::DeleteCheckpointResponse>(
      coordinator_, {*context, *bytes, response}, [](CallId call, const v1::DeleteCheckpointRequest& request) {
        return DeleteCheckpointEvent{call, request.name()};
      });
}

}  // namespace stemma::server
