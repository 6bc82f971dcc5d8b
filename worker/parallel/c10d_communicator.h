// The communicator over a c10d backend whose ranks are processes. Made by rendezvous.h; included by its .cc alone,
// since c10d's headers are expensive to compile.
//
// A reduce-scatter is an exchange of parts, which this rank adds in the order of the ranks: Gloo's own is an all-reduce
// of the whole input, twice the bytes; and the same order gives the same bits by whichever transport. What only moves
// travels as bytes, so that any dtype does.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "absl/time/time.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

class C10dCommunicator final : public Communicator {
 public:
  // `device`: of the tensors that the backend carries.
  C10dCommunicator(std::string axis, c10::intrusive_ptr<c10d::Backend> backend, at::Device device,
                   absl::Duration timeout);
  ~C10dCommunicator() override;

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  StartedCall Start(const CollectiveCall& call) override;
  // Drops the connections, so that a peer that waits for this rank hears of the error too: as soon as nothing is in
  // flight any more and whatever is pending has been waited for.
  void Break() override;

  // Agrees on words of the host, by way of the device.
  StartedCall StartAgree(const CollectiveCall& call);
  Work StartWork(const CollectiveCall& call, const at::Tensor& exchanged);
  Work Reduce(const at::Tensor& values, c10d::ReduceOp op);

  c10::intrusive_ptr<c10d::Backend> backend_;  // null: broken
  const at::Device device_;
  const absl::Duration timeout_;
  std::thread closing_;  // drops the backend after an error
};

// Runs a call of c10d, and turns what it throws into Unavailable: what is known of the peer, and c10d's first line.
absl::Status CatchC10d(absl::Duration timeout, const std::function<void()>& call);

}  // namespace stemma::worker
