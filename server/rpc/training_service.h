// TrainingService: decodes, posts to the coordinator, encodes. Callback API; nothing blocks, every reactor finishes on
// every path.
#pragma once

#include "common/admission/run_numbers.h"
#include "common/model/model_config.h"
#include "server/coordinator/coordinator.h"
#include "server/rpc/request_reader.h"
#include "stemma/v1/training.grpc.pb.h"

namespace stemma::server {

// TrainingService::CallbackService, but for the streams of requests, which gRPC does not decode (streaming_calls.h).
namespace training_calls {
using Calls = v1::TrainingService;
template <typename Base>
using WithRequests = Calls::WithRawCallbackMethod_UpdateActor<Calls::WithRawCallbackMethod_ComputeLogProb<
    Calls::WithCallbackMethod_GetRequest<Calls::WithCallbackMethod_ListRequests<
        Calls::WithCallbackMethod_CancelRequest<Calls::WithCallbackMethod_ReadResults<Base>>>>>>;
template <typename Base>
using WithCheckpoints = Calls::WithCallbackMethod_SaveCheckpoint<Calls::WithCallbackMethod_LoadCheckpoint<
    Calls::WithCallbackMethod_ListCheckpoints<Calls::WithCallbackMethod_VerifyCheckpoint<
        Calls::WithCallbackMethod_PinCheckpoint<Calls::WithCallbackMethod_DeleteCheckpoint<Base>>>>>>;
template <typename Base>
using WithModel = Calls::WithCallbackMethod_GetServerInfo<Calls::WithCallbackMethod_GetModel<
    Calls::WithCallbackMethod_ExportWeights<Calls::WithCallbackMethod_DeleteExport<Base>>>>;
using All = WithRequests<WithCheckpoints<WithModel<Calls::Service>>>;
}  // namespace training_calls

class TrainingServiceRpc final : public training_calls::All {
 public:
  TrainingServiceRpc(Coordinator& coordinator, v1::Limits limits, ModelConfig model, const RunNumbers& numbers)
      : coordinator_(coordinator),
        limits_(std::move(limits)),
        model_(std::move(model)),
        numbers_(numbers),
        receiving_(limits_.receiving_bytes()) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext*, const v1::GetServerInfoRequest*,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext*, const v1::GetModelRequest*,
                                     v1::ModelInfo* response) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* UpdateActor(grpc::CallbackServerContext*,
                                                         grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ComputeLogProb(grpc::CallbackServerContext*) override;
  grpc::ServerUnaryReactor* GetRequest(grpc::CallbackServerContext*, const v1::GetRequestRequest* request,
                                       v1::RequestStatus* response) override;
  grpc::ServerUnaryReactor* ListRequests(grpc::CallbackServerContext*, const v1::ListRequestsRequest*,
                                         v1::ListRequestsResponse* response) override;
  grpc::ServerUnaryReactor* CancelRequest(grpc::CallbackServerContext*, const v1::CancelRequestRequest* request,
                                          v1::RequestStatus* response) override;
  grpc::ServerWriteReactor<v1::GroupResult>* ReadResults(grpc::CallbackServerContext*,
                                                         const v1::ReadResultsRequest* request) override;
  grpc::ServerUnaryReactor* ExportWeights(grpc::CallbackServerContext*, const v1::ExportWeightsRequest* request,
                                          v1::ExportWeightsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteExport(grpc::CallbackServerContext*, const v1::DeleteExportRequest* request,
                                         v1::DeleteExportResponse* response) override;
  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext*, const v1::SaveCheckpointRequest* request,
                                           v1::Checkpoint* response) override;
  grpc::ServerUnaryReactor* LoadCheckpoint(grpc::CallbackServerContext*, const v1::LoadCheckpointRequest* request,
                                           v1::LoadCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext*, const v1::ListCheckpointsRequest*,
                                            v1::ListCheckpointsResponse* response) override;
  grpc::ServerUnaryReactor* VerifyCheckpoint(grpc::CallbackServerContext*, const v1::VerifyCheckpointRequest* request,
                                             v1::Checkpoint* response) override;
  grpc::ServerUnaryReactor* PinCheckpoint(grpc::CallbackServerContext*, const v1::PinCheckpointRequest* request,
                                          v1::Checkpoint* response) override;
  grpc::ServerUnaryReactor* DeleteCheckpoint(grpc::CallbackServerContext*, const v1::DeleteCheckpointRequest* request,
                                             v1::DeleteCheckpointResponse* response) override;

 private:
  RequestRules rules() { return {limits_, model_, numbers_, receiving_}; }

  Coordinator& coordinator_;
  const v1::Limits limits_;
  const ModelConfig model_;
  const RunNumbers numbers_;
  ReceivingBudget receiving_;
};

}  // namespace stemma::server
