// Transport: what carries an axis's tensors between its ranks. gloo_transport.h carries those of the CPU,
// nccl_transport.h those of a CUDA device. Includes c10d, whose headers are expensive to compile: for this folder's .cc
// files, and for whoever makes a transport.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace stemma::worker {

// One rank's side of an axis that is to be connected.
struct AxisRank {
  std::string axis;
  int rank = 0, size = 1;
  std::string own_host;  // IP literal of this process, on which it may listen
  std::chrono::milliseconds join_timeout, collective_timeout;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Where the tensors are that it carries.
  virtual at::Device device() const = 0;
  // Connects this rank to the others of its axis, who have all come to the store, and returns when it has. The store is
  // not needed afterwards. Throws what c10d throws.
  virtual c10::intrusive_ptr<c10d::Backend> Connect(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const AxisRank& axis) const = 0;
};

}  // namespace stemma::worker
