// The calls whose request or answer is a stream. Each holds itself until OnDone, and finishes on every path.
//
// Reading stops (and so the client is held back) while a part is being checked: the next read starts after it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/admission/request_builder.h"
#include "common/model_config.h"
#include "grpcpp/support/server_callback.h"
#include "server/coordinator/coordinator.h"
#include "server/rpc/result_stream.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

struct RequestRules {
  const v1::Limits& limits;
  const ModelConfig& model;
  const RunNumbers& numbers;
};

class UpdateActorCall final : public grpc::ServerReadReactor<v1::GroupPart>, public ClientCall {
 public:
  static grpc::ServerReadReactor<v1::GroupPart>* Start(Coordinator& coordinator, const RequestRules& rules,
                                                       v1::RequestStatus* response);
  UpdateActorCall(Coordinator& coordinator, const RequestRules& rules, v1::RequestStatus* response)
      : coordinator_(coordinator),
        builder_(TrainingRequest::Kind::kUpdate, rules.limits, rules.model, rules.numbers),
        response_(response) {}

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void OnChunk(std::shared_ptr<const v1::GroupResult> chunk) override;
  void OnReply(Reply reply) override;

 private:
  void FinishOnce(const grpc::Status& status);

  Coordinator& coordinator_;
  RequestBuilder builder_;
  v1::RequestStatus* const response_;
  v1::GroupPart part_;
  std::atomic<CallId> call_ = 0;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> finished_ = false;
  std::shared_ptr<UpdateActorCall> self_;
};

class LogProbCall final : public grpc::ServerBidiReactor<v1::GroupPart, v1::GroupResult>, public ClientCall {
 public:
  static grpc::ServerBidiReactor<v1::GroupPart, v1::GroupResult>* Start(Coordinator& coordinator,
                                                                        const RequestRules& rules);
  LogProbCall(Coordinator& coordinator, const RequestRules& rules)
      : coordinator_(coordinator),
        builder_(TrainingRequest::Kind::kLogProb, rules.limits, rules.model, rules.numbers),
        stream_([this](const v1::GroupResult* chunk) { StartWrite(chunk); },
                [this](const grpc::Status& status) { Finish(status); }) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { stream_.OnWriteDone(ok); }
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void OnChunk(std::shared_ptr<const v1::GroupResult> chunk) override { stream_.Add(std::move(chunk)); }
  void OnReply(Reply reply) override { stream_.End(std::get<absl::Status>(reply)); }

 private:
  Coordinator& coordinator_;
  RequestBuilder builder_;
  v1::GroupPart part_;
  std::atomic<CallId> call_ = 0;
  std::atomic<bool> cancelled_ = false;
  ResultStream stream_;
  std::shared_ptr<LogProbCall> self_;
};

class ReadResultsCall final : public grpc::ServerWriteReactor<v1::GroupResult>, public ClientCall {
 public:
  static grpc::ServerWriteReactor<v1::GroupResult>* Start(Coordinator& coordinator, const std::string& request_id);
  explicit ReadResultsCall(Coordinator& coordinator)
      : coordinator_(coordinator),
        stream_([this](const v1::GroupResult* chunk) { StartWrite(chunk); },
                [this](const grpc::Status& status) { Finish(status); }) {}

  void OnWriteDone(bool ok) override { stream_.OnWriteDone(ok); }
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void OnChunk(std::shared_ptr<const v1::GroupResult> chunk) override { stream_.Add(std::move(chunk)); }
  void OnReply(Reply reply) override { stream_.End(std::get<absl::Status>(reply)); }

 private:
  Coordinator& coordinator_;
  std::atomic<CallId> call_ = 0;
  ResultStream stream_;
  std::shared_ptr<ReadResultsCall> self_;
};

}  // namespace stemma
