// Reads the parts of one request from its stream, and hands on the request, or why there is none. What a streaming call
// does with its client's half.
//
// A part is checked when it comes, and the next one is read after it: so the client is held back. What is kept counts
// against limits.receiving_bytes, all streams together; a stream that brings nothing for limits.stream_idle_ms is
// ended.
//
// Thread safety: OnReadDone is called by one thread at a time, Abandon by any. `refuse` or `submit` is called at most
// once, and neither after Abandon.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/admission/request_builder.h"
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
    std::function<void(v1::GroupPart*)> start_read;
    std::function<void(const absl::Status&)> refuse;
    std::function<void(std::shared_ptr<const TrainingRequest>)> submit;
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
  void End(const absl::Status& status);

  const Hooks hooks_;
  RequestBuilder builder_;
  ReceivingBudget::Share share_;
  const uint64_t idle_ms_;
  IdleTimer timer_;
  v1::GroupPart part_;
  std::weak_ptr<void> call_;
  std::atomic<bool> ended_ = false;
};

}  // namespace stemma::server
