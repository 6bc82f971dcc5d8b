// The request of a streaming call on its way to the coordinator, whose client may leave at any time.
//
// Thread safety: Submit is called once, by the thread that reads the stream; ClientLeft by any, before, during or after
// it. Whichever comes second sees the other, so the coordinator always hears that the client left.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "common/admission/training_request.h"
#include "server/coordinator/coordinator.h"

namespace stemma::server {

class SubmittedRequest {
 public:
  // `coordinator` outlives it.
  explicit SubmittedRequest(Coordinator& coordinator) : coordinator_(coordinator) {}

  // `call`: hears the answer.
  void Submit(std::shared_ptr<ClientCall> call, std::shared_ptr<const TrainingRequest> request) {
    call_ = coordinator_.Call(std::move(call), [&](CallId id) { return SubmitEvent{id, std::move(request)}; });
    if (client_left_) coordinator_.CallGone(call_);
  }
  void ClientLeft() {
    client_left_ = true;
    coordinator_.CallGone(call_);
  }

 private:
  Coordinator& coordinator_;
  std::atomic<CallId> call_ = 0;  // 0: not submitted, which the coordinator ignores
  std::atomic<bool> client_left_ = false;
};

}  // namespace stemma::server
