// Communicator: the collectives of the ranks of one mesh axis. Every tensor that crosses ranks goes through one.
//
// Called by worker/engine, worker/optim, worker/model and worker/ops on the engine thread. Implementations:
// local_communicator.h (an axis of size 1), rendezvous.h (processes), and for tests tests/testing/thread_communicator.h
// (threads of one process).
//
// Thread safety: none, but for stats(). All ranks of the axis make the same calls in the same order; sends and receives
// are ordered among those of one pair of ranks only. A rank with several axes calls them in one order, too.
//
// Invariants:
//  (1) A sum has the same bits on every rank, and in every run of the same program with as many ranks. Runs may differ
//      where NCCL adds an all-reduce up in the switch (NVLS), which NCCL_ALGO=^NVLS turns off.
//  (2) With one rank every call is the identity.
//  (3) After an error the communicator is broken: every later call, and every Wait, returns that error at once. The
//      values of the calls concerned are undefined. The generation has ended: the process exits and rejoins.
//
// A call is named as a file may be (common/base/names.h): traces carry the name, and the server reads no other.
//
// Errors: Unavailable - a peer has gone or has not come in time; names the collective, axis and rank. What a program
// alone can get wrong is CHECKed: a dtype, a size, a tensor that is not contiguous, a pending collective that no one
// has waited for. Ranks that meet in different calls die by CHECK on threads; c10d cannot tell, and may hang or abort.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/parallel/collective.h"
#include "worker/parallel/collective_record.h"
#include "worker/parallel/collective_stats.h"

namespace stemma::worker {

class Communicator;

struct CollectiveCall {
  CollectiveKind kind;
  std::string name;
  at::Tensor input = {};    // undefined for a receive, a broadcast's values are its output
  at::Tensor output = {};   // undefined for a send; the same tensor as input where the call is in place
  int peer = -1;            // root, receiver or sender
  at::Tensor scratch = {};  // of a reduce-scatter, as large as the input; undefined: the communicator takes its own
};

// A call that was begun, as an implementation answers it.
struct StartedCall {
  std::function<absl::Status()> wait;    // for its end: called once, or dropped when another call has failed meanwhile
  std::function<bool()> done = nullptr;  // whether `wait` would return at once; null: it would
};

// A collective that was started. Its tensors are neither written nor read by others until it has been waited for.
class PendingCollective {
 public:
  ~PendingCollective();  // CHECKs that it was waited for, after an error as well
  PendingCollective(const PendingCollective&) = delete;
  PendingCollective& operator=(const PendingCollective&) = delete;

  // Called once. Pending collectives of one communicator are waited for in any order.
  absl::Status Wait();
  // Returns whether Wait would return at once. Never waits.
  bool Done() const;

 private:
  friend class Communicator;
  PendingCollective(Communicator* communicator, CollectiveCall call)
      : communicator_(communicator), call_(std::move(call)) {}

  Communicator* const communicator_;
  const CollectiveCall call_;
  StartedCall started_;       // without `wait`: ended
  double begun_s_ = 0;        // of RealClock()
  double start_seconds_ = 0;  // that the start held its caller
};

class Communicator {
 public:
  virtual ~Communicator();  // CHECKs that nothing is pending
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& axis() const { return axis_; }  // "data.0.0"
  int rank() const { return rank_; }
  int size() const { return size_; }
  const CollectiveStats& stats() const { return stats_; }
  // Tells `observer` of every collective that ends well, on the engine thread; empty: tells nobody.
  void Observe(CollectiveObserver observer) { observer_ = std::move(observer); }

  // Adds the ranks' values, in place. float32, float64 and int64 only: a narrow float would round at every hop.
  absl::Status AllReduceSum(std::string_view name, at::Tensor& values);
  // Adds the ranks' inputs, each of size() equal parts, and puts this rank's part of the sum into output. dtypes as
  // above, or bfloat16 inputs whose sum is float32: each part travels as it is and is added in float32, in the order of
  // the ranks. An output of the inputs' dtype may be this rank's part of the input, which is then undefined elsewhere.
  absl::Status ReduceScatterSum(std::string_view name, const at::Tensor& input, at::Tensor& output);
  // Puts the ranks' inputs into output one after the other. Any dtype. The input may be this rank's part of the output.
  absl::Status AllGather(std::string_view name, const at::Tensor& input, at::Tensor& output);
  // Puts the root's values into everyone's. Any dtype.
  absl::Status Broadcast(std::string_view name, at::Tensor& values, int root);
  // Go to, and come from, another rank. Any dtype. A Send may return only when its receiver has taken the values: two
  // ranks that both send first may wait for each other.
  absl::Status Send(std::string_view name, const at::Tensor& values, int to);
  absl::Status Receive(std::string_view name, at::Tensor& values, int from);
  // Replaces each word by the largest of all ranks: one rank's "no" (1 against 0) is everybody's.
  absl::Status Agree(std::string_view name, std::span<int64_t> words);
  // Breaks the communicator, because this rank cannot go on: what is pending ends here, and the peers hear of it, at
  // the latest in their next agreement.
  void GiveUp();

  // The same, begun: computing may go on beside it. An error is Wait's. A reduce-scatter for which the caller has
  // scratch of its own takes no memory, in the start or in the wait.
  std::unique_ptr<PendingCollective> StartReduceScatterSum(std::string_view name, const at::Tensor& input,
                                                           at::Tensor& output, const at::Tensor& scratch = {});
  std::unique_ptr<PendingCollective> StartAllGather(std::string_view name, const at::Tensor& input, at::Tensor& output);
  std::unique_ptr<PendingCollective> StartSend(std::string_view name, const at::Tensor& values, int to);

 protected:
  Communicator(std::string axis, int rank, int size);

 private:
  friend class PendingCollective;

  // Begins the call, whose tensors have been checked. Errors of its wait: Unavailable - what is known of the peer; the
  // rest is added here.
  virtual StartedCall Start(const CollectiveCall& call) = 0;
  // Lets go of the peers, so that they hear of the error; does not wait. Called once; no Start follows.
  virtual void Break() {}

  std::unique_ptr<PendingCollective> Begin(CollectiveCall call);
  absl::Status End(PendingCollective& pending);
  absl::Status Broken(const CollectiveCall& call, const absl::Status& cause) const;
  void CheckPeer(int peer) const;

  const std::string axis_;
  const int rank_;
  const int size_;
  CollectiveStats stats_;
  CollectiveObserver observer_;
  absl::Status error_;
  int pending_count_ = 0;
};

}  // namespace stemma::worker
