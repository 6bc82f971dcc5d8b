#include "server/rpc/training_service.h"

#include <algorithm>

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

}  // namespace

grpc::ServerUnaryReactor* TrainingServiceRpc::GetServerInfo(grpc::CallbackServerContext*,
                                                            const v1::GetServerInfoRequest*, v1::ServerInfo* response) {
  return UnaryCall<v1::ServerInfo>::Start(coordinator_, response, [](CallId call) { return GetServerInfoEvent{call}; });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::GetModel(grpc::CallbackServerContext*, const v1::GetModelRequest*,
                                                       v1::ModelInfo* response) {
  return UnaryCall<v1::ModelInfo>::Start(coordinator_, response, [](CallId call) { return GetModelEvent{call}; });
}

grpc::ServerReadReactor<grpc::ByteBuffer>* TrainingServiceRpc::UpdateActor(grpc::CallbackServerContext*,
                                                                           grpc::ByteBuffer* response) {
  return UpdateActorCall::Start(coordinator_, rules(), response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* TrainingServiceRpc::ComputeLogProb(
    grpc::CallbackServerContext* context) {
  return LogProbCall::Start(coordinator_, rules(), context);
}

grpc::ServerUnaryReactor* TrainingServiceRpc::GetRequest(grpc::CallbackServerContext*,
                                                         const v1::GetRequestRequest* request,
                                                         v1::RequestStatus* response) {
  std::optional<absl::Duration> wait;
  if (request->has_wait_ms()) wait = absl::Milliseconds(std::min<uint64_t>(request->wait_ms(), 1ull << 40));
  return UnaryCall<v1::RequestStatus>::Start(coordinator_, response, [&](CallId call) {
    return GetRequestEvent{call, request->request_id(), wait};
  });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::ListRequests(grpc::CallbackServerContext*, const v1::ListRequestsRequest*,
                                                           v1::ListRequestsResponse* response) {
  return UnaryCall<v1::ListRequestsResponse>::Start(coordinator_, response,
                                                    [](CallId call) { return ListRequestsEvent{call}; });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::CancelRequest(grpc::CallbackServerContext* context,
                                                            const v1::CancelRequestRequest* request,
                                                            v1::RequestStatus* response) {
  if (const absl::Status known = CheckKnown(*request); !known.ok()) return Refuse(*context, known);
  return UnaryCall<v1::RequestStatus>::Start(coordinator_, response, [&](CallId call) {
    return CancelEvent{call, request->request_id()};
  });
}

grpc::ServerWriteReactor<v1::GroupResult>* TrainingServiceRpc::ReadResults(grpc::CallbackServerContext* context,
                                                                           const v1::ReadResultsRequest* request) {
  return ReadResultsCall::Start(coordinator_, limits_.stream_idle_ms(), context, request->request_id());
}

grpc::ServerUnaryReactor* TrainingServiceRpc::ExportWeights(grpc::CallbackServerContext* context,
                                                            const v1::ExportWeightsRequest* request,
                                                            v1::ExportWeightsResponse* response) {
  if (const absl::Status known = CheckKnown(*request); !known.ok()) return Refuse(*context, known);
  return UnaryCall<v1::ExportWeightsResponse>::Start(coordinator_, response, [&](CallId call) {
    return ExportEvent{call, *request};
  });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::DeleteExport(grpc::CallbackServerContext* context,
                                                           const v1::DeleteExportRequest* request,
                                                           v1::DeleteExportResponse* response) {
  if (const absl::Status known = CheckKnown(*request); !known.ok()) return Refuse(*context, known);
  return UnaryCall<v1::DeleteExportResponse>::Start(coordinator_, response, [&](CallId call) {
    return DeleteExportEvent{call, request->name()};
  });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::SaveCheckpoint(grpc::CallbackServerContext* context,
                                                             const v1::SaveCheckpointRequest* request,
                                                             v1::Checkpoint* response) {
  if (const absl::Status known = CheckKnown(*request); !known.ok()) return Refuse(*context, known);
  return UnaryCall<v1::Checkpoint>::Start(coordinator_, response, [&](CallId call) {
    return SaveCheckpointEvent{call, *request};
  });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::LoadCheckpoint(grpc::CallbackServerContext* context,
                                                             const v1::LoadCheckpointRequest* request,
                                                             v1::LoadCheckpointResponse* response) {
  if (const absl::Status known = CheckKnown(*request); !known.ok()) return Refuse(*context, known);
  return UnaryCall<v1::LoadCheckpointResponse>::Start(coordinator_, response, [&](CallId call) {
    return LoadCheckpointEvent{call, *request};
  });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::ListCheckpoints(grpc::CallbackServerContext*,
                                                              const v1::ListCheckpointsRequest*,
                                                              v1::ListCheckpointsResponse* response) {
  return UnaryCall<v1::ListCheckpointsResponse>::Start(coordinator_, response,
                                                       [&](CallId call) { return ListCheckpointsEvent{call}; });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::VerifyCheckpoint(grpc::CallbackServerContext*,
                                                               const v1::VerifyCheckpointRequest* request,
                                                               v1::Checkpoint* response) {
  return UnaryCall<v1::Checkpoint>::Start(coordinator_, response, [&](CallId call) {
    return VerifyCheckpointEvent{call, request->name()};
  });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::PinCheckpoint(grpc::CallbackServerContext* context,
                                                            const v1::PinCheckpointRequest* request,
                                                            v1::Checkpoint* response) {
  if (const absl::Status known = CheckKnown(*request); !known.ok()) return Refuse(*context, known);
  return UnaryCall<v1::Checkpoint>::Start(coordinator_, response, [&](CallId call) {
    return PinCheckpointEvent{call, request->name(), request->pinned()};
  });
}

grpc::ServerUnaryReactor* TrainingServiceRpc::DeleteCheckpoint(grpc::CallbackServerContext* context,
                                                               const v1::DeleteCheckpointRequest* request,
                                                               v1::DeleteCheckpointResponse* response) {
  if (const absl::Status known = CheckKnown(*request); !known.ok()) return Refuse(*context, known);
  return UnaryCall<v1::DeleteCheckpointResponse>::Start(coordinator_, response, [&](CallId call) {
    return DeleteCheckpointEvent{call, request->name()};
  });
}

}  // namespace stemma::server
