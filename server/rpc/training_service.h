// TrainingService: decodes, posts to the coordinator, encodes; gRPC decodes nothing (server/rpc/wire.h). Callback API;
// nothing blocks, every reactor finishes on every path.
#pragma once

#include "common/admission/run_numbers.h"
#include "common/model/model_config.h"
#include "server/coordinator/coordinator.h"
#include "server/rpc/request_reader.h"
#include "stemma/v1/training.grpc.pb.h"

namespace stemma::server {

// TrainingService::CallbackService without gRPC's own decoding and encoding.
namespace training_calls {
using Calls = v1::TrainingService;
template <typename Base>
using WithRequests = Calls::WithRawCallbackMethod_UpdateActor<
    Calls::WithRawCallbackMethod_ComputeLogProb<Calls::WithRawCallbackMethod_VerifyGroup<
        Calls::WithRawCallbackMethod_GetRequest<Calls::WithRawCallbackMethod_ListRequests<
            Calls::WithRawCallbackMethod_CancelRequest<Calls::WithRawCallbackMethod_ReadResults<Base>>>>>>>;
template <typename Base>
using WithCheckpoints = Calls::WithRawCallbackMethod_SaveCheckpoint<Calls::WithRawCallbackMethod_LoadCheckpoint<
    Calls::WithRawCallbackMethod_ListCheckpoints<Calls::WithRawCallbackMethod_VerifyCheckpoint<
        Calls::WithRawCallbackMethod_PinCheckpoint<Calls::WithRawCallbackMethod_DeleteCheckpoint<Base>>>>>>;
template <typename Base>
using WithModel = Calls::WithRawCallbackMethod_GetServerInfo<Calls::WithRawCallbackMethod_GetModel<
    Calls::WithRawCallbackMethod_ExportWeights<Calls::WithRawCallbackMethod_DeleteExport<Base>>>>;
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

  grpc::ServerReadReactor<grpc::ByteBuffer>* UpdateActor(grpc::CallbackServerContext*,
                                                         grpc::ByteBuffer* response) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* VerifyGroup(grpc::CallbackServerContext*,
                                                         grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ComputeLogProb(grpc::CallbackServerContext*) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadResults(grpc::CallbackServerContext*,
                                                          const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetRequest(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListRequests(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CancelRequest(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ExportWeights(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteExport(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* LoadCheckpoint(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* VerifyCheckpoint(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* PinCheckpoint(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteCheckpoint(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;

 private:
  RequestRules rules() { return {limits_, model_, numbers_, receiving_}; }

  Coordinator& coordinator_;
  const v1::Limits limits_;
  const ModelConfig model_;
  const RunNumbers numbers_;
  ReceivingBudget receiving_;
};

}  // namespace stemma::server
