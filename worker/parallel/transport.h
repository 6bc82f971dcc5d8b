// Transport: what carries an axis's tensors between its ranks. gloo_transport.h carries those of the CPU,
// nccl_transport.h those of a CUDA device and, beside them, those of the CPU. Includes c10d, whose headers are
// expensive to compile: for this folder's .cc files, and for whoever makes a transport.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace stemma::worker {

// One rank's side of an axis that is to be connected.
struct AxisRank {
  std::string axis;
  int rank = 0, size = 1;
  bool pairs_apart = false;  // messages of different pairs, or directions, wait for each other nowhere: AxisGroup; a
                             // device's tensors go in messages alone
  bool one_way = false;      // a pair of these: the first sends to the second, and there is nothing else
  std::string own_host;      // IP literal of this process, on which it may listen
  std::chrono::milliseconds join_timeout, collective_timeout;
};

// What connects one rank to the others of its axis.
struct AxisBackends {
  c10::intrusive_ptr<c10d::Backend> host;    // carries tensors of the CPU
  c10::intrusive_ptr<c10d::Backend> device;  // those of a device; null: there is none but the CPU, or pairs are apart
  // Carry a device's messages to and from each rank, as a group of two, of which the sender is the first. Empty:
  // `device` carries them. Null: the ranks are no neighbours on the axis, whose last rank is the first one's, and send
  // nothing.
  std::vector<c10::intrusive_ptr<c10d::Backend>> to, from;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Returns the device of the tensors that this transport carries in a pass.
  virtual at::Device device() const = 0;
  // Connects this rank to the others of its axis, who have all come to the store, and returns when it has. The store is
  // not needed afterwards. Throws what c10d throws.
  virtual AxisBackends Connect(const c10::intrusive_ptr<c10d::Store>& store, const AxisRank& axis) const = 0;
};

// Connects all ranks of an axis, or two of them, with a backend of the device.
using ConnectRanks = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                                     const AxisRank& ranks)>;

// Fills what carries a device's tensors, for a transport whose backend runs one message after the other: where pairs
// are apart `to` and `from`, else `device`.
void ConnectOnDevice(const c10::intrusive_ptr<c10d::Store>& store, const AxisRank& axis, const ConnectRanks& connect,
                     AxisBackends& backends);

// Makes a first call, for a backend that connects what a call needs at the first one of its kind: one way a message,
// else an all-reduce. Throws what c10d throws, and where a value is wrong.
void WarmUp(c10d::Backend& backend, const AxisRank& ranks, at::Device device);

}  // namespace stemma::worker
