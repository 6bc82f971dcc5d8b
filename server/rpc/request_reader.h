// Reads the parts of one request from its stream, and hands on the request, or why there is none. What a streaming call
// does with its client's half.
//
// Each part is checked before the next one is read, so a client cannot send faster than the server checks. The memory
// that a part will take is counted against limits.receiving_bytes, a bound on all streams together, before the part is
// decoded; afterwards only what is kept of it counts. A stream that brings nothing for limits.stream_idle_ms is ended.
//
// Thread safety: OnReadDone is called by one thread at a time, Abandon by any. `refuse` or `submit` is called at most
// once, and neither after Abandon.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/admission/request_builder.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/idle_timer.h"
#include "server/rpc/receiving_budget.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// What a service holds every request to.
struct RequestRules {
  const v1::Limits& limits;
  const ModelConfig& model;
  const RunNumbers& numbers;
  ReceivingBudget& receiving;
};

class RequestReader {
 public:
  struct Hooks {
    std::function<void(grpc::ByteBuffer*)> start_read;
    std::function<void(const absl::Status&)> refuse;
    std::function<void(std::shared_ptr<const TrainingRequest>)> submit;  // may be one that is refused
  };

  RequestReader(TrainingRequest::Kind kind, const RequestRules& rules, Hooks hooks);

  // `call`: whose member this is; the timer keeps it alive.
  void Start(std::weak_ptr<void> call);
  void OnReadDone(bool ok);
  // The client left.
  void Abandon() { ended_ = true; }

 private:
  void ReadNext();
  absl::Status Take();
  absl::StatusOr<v1::GroupPart> Decode();
  void End(const absl::Status& status);
  // Ends with what the builder said.
  void Refuse(const absl::Status& status);

  const Hooks hooks_;
  RequestBuilder builder_;
  ReceivingBudget::Share share_;
  const uint64_t idle_ms_;
  IdleTimer timer_;
  grpc::ByteBuffer part_;  // not decoded
  std::weak_ptr<void> call_;
  std::atomic<bool> ended_ = false;
};

}  // namespace stemma::server
