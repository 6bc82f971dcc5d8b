// For communicators of tests that pass their calls on to the right one: a send that is begun there, while its caller
// goes on.
#pragma once

#include <memory>
#include <utility>

#include "tests/testing/namespaces.h"
#include "worker/parallel/communicator.h"

namespace stemma::testing {

// Begins the send on `right`, which outlives the answer. Where nobody waits for it, because another call has failed,
// `right` gives up.
inline worker::StartedCall PassSend(worker::Communicator& right, const worker::CollectiveCall& call) {
  struct Sent {
    worker::Communicator& right;
    std::unique_ptr<worker::PendingCollective> message;
    absl::Status Wait() { return std::exchange(message, nullptr)->Wait(); }
    ~Sent() {
      if (message == nullptr) return;
      right.GiveUp();
      message->Wait().IgnoreError();
    }
  };
  const std::shared_ptr<Sent> sent(new Sent{right, right.StartSend(call.name, call.input, call.peer)});
  return {[sent] { return sent->Wait(); }, [sent] { return sent->message->Done(); }};
}

}  // namespace stemma::testing
