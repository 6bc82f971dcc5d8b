// The communicator over a c10d backend whose ranks are processes. Made by rendezvous.h; included by its .cc alone,
// since c10d's headers are expensive to compile.
//
// A reduce-scatter is an exchange of parts, which this rank adds in the order of the ranks: Gloo's own is an all-reduce
// of the whole input, twice the bytes; and the same order gives the same bits by whichever transport. What only moves
// travels as bytes, so that any dtype does. A call goes by the backend of the device on which its tensors are. Memory
// of a device is given back in the order of its streams, whatever crosses ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "absl/time/time.h"
#include "worker/parallel/communicator.h"
#include "worker/parallel/transport.h"

namespace stemma::worker {

// The tensors of one call, as a backend gets them. It keeps what it was given beyond the wait: PyTorch's Gloo for a
// moment, on a thread of its own, so that a step would take more memory than its plan says, now and then. NCCL says of
// a message's memory that its stream uses it (recordStream), and it would be given back when the host sees that the
// stream is past it, not in the order of the streams. So they get views, and who has waited takes the tensors back;
// of a device's collectives PyTorch knows that they are waited for. Where a call failed, the tensors live as long as
// the views: somebody may still write to them. Copies are of one call.
class LentTensors {
 public:
  at::Tensor ViewOf(const at::Tensor& values) const;
  at::Tensor OfCollective(const at::Tensor& values) const;
  void TakeBack() const { held_->clear(); }

 private:
  const std::shared_ptr<std::vector<at::Tensor>> held_ = std::make_shared<std::vector<at::Tensor>>();
};

class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(std::string axis, AxisBackends backends, absl::Duration timeout);
  ~C10dCommunicator() override;

 private:
  StartedCall Start(const CollectiveCall& call) override;
  // Drops the connections, so that a peer that waits for this rank hears of the error too: as soon as nothing is in
  // flight any more and whatever is pending has been waited for.
  void Break() override;

  // The backend by which a call goes, and the peer's rank there.
  struct Route {
    c10d::Backend& backend;
    int peer = -1;
  };
  Route RouteOf(const CollectiveCall& call) const;
  c10::intrusive_ptr<c10d::Work> StartWork(const CollectiveCall& call, const at::Tensor& exchanged,
                                           const LentTensors& lent);

  AxisBackends backends_;  // without any: broken
  const absl::Duration timeout_;
  std::thread closing_;  // drops the backends after an error
};

// Runs a call of c10d, and turns what it throws into Unavailable: what is known of the peer, or that this rank's own
// device or its NCCL failed, and the first line of what was thrown, or NCCL's own reason.
absl::Status CatchC10d(absl::Duration timeout, const std::function<void()>& call);

}  // namespace stemma::worker
