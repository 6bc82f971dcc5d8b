// The calls whose request or answer is a stream. Each holds itself until OnDone, and finishes on every path. gRPC
// decodes nothing of a request's stream: RequestReader does, when it has counted what that takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/coordinator/coordinator.h"
#include "server/rpc/request_reader.h"
#include "server/rpc/result_stream.h"
#include "server/rpc/submitted_request.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// A call that sends a request with a loss and is answered once: UpdateActor, VerifyGroup.
class LossCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>, public ClientCall {
 public:
  static grpc::ServerReadReactor<grpc::ByteBuffer>* Start(TrainingRequest::Kind kind, Coordinator& coordinator,
                                                          const RequestRules& rules, grpc::ByteBuffer* response);
  LossCall(TrainingRequest::Kind kind, Coordinator& coordinator, const RequestRules& rules, grpc::ByteBuffer* response);

  void OnReadDone(bool ok) override { reader_.OnReadDone(ok); }
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void OnChunk(std::shared_ptr<const v1::GroupResult> chunk) override;
  void OnReply(Reply reply) override;

 private:
  void FinishOnce(const grpc::Status& status);

  SubmittedRequest request_;
  RequestReader reader_;
  grpc::ByteBuffer* const response_;
  std::atomic<bool> finished_ = false;
  std::shared_ptr<LossCall> self_;
};

class LogProbCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, public ClientCall {
 public:
  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(Coordinator& coordinator,
                                                                            const RequestRules& rules,
                                                                            grpc::CallbackServerContext* context);
  LogProbCall(Coordinator& coordinator, const RequestRules& rules, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override { reader_.OnReadDone(ok); }
  void OnWriteDone(bool ok) override { stream_.OnWriteDone(ok); }
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void OnChunk(std::shared_ptr<const v1::GroupResult> chunk) override { stream_.Add(std::move(chunk)); }
  void OnReply(Reply reply) override { stream_.End(std::get<absl::Status>(reply)); }

 private:
  void Write(const v1::GroupResult& chunk);

  SubmittedRequest request_;
  RequestReader reader_;
  grpc::ByteBuffer chunk_;  // that is being written
  ResultStream stream_;
  std::shared_ptr<LogProbCall> self_;
};

class ReadResultsCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public ClientCall {
 public:
  // `idle_ms`: limits.stream_idle_ms.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(Coordinator& coordinator, uint64_t idle_ms,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);
  ReadResultsCall(Coordinator& coordinator, uint64_t idle_ms, grpc::CallbackServerContext* context)
      : coordinator_(coordinator),
        stream_(context, idle_ms,
                {.write = [this](const v1::GroupResult* chunk) { Write(*chunk); },
                 .finish = [this](const grpc::Status& status) { Finish(status); }}) {}

  void OnWriteDone(bool ok) override { stream_.OnWriteDone(ok); }
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void OnChunk(std::shared_ptr<const v1::GroupResult> chunk) override { stream_.Add(std::move(chunk)); }
  void OnReply(Reply reply) override { stream_.End(std::get<absl::Status>(reply)); }

 private:
  void Write(const v1::GroupResult& chunk);

  Coordinator& coordinator_;
  std::atomic<CallId> call_ = 0;
  grpc::ByteBuffer chunk_;  // that is being written
  ResultStream stream_;
  std::shared_ptr<ReadResultsCall> self_;
};

}  // namespace stemma::server
