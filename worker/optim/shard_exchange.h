// What data-parallel ranks exchange in a step (ZeRO-1): gradients are summed at the rank that owns their elements, and
// the weights that it stepped come back to all. Called by worker/engine on its thread, by all ranks in the same order.
//
// Each round of worker/optim/shards.h is one collective, in the dtype of the gradients (fp32, fp64 in an fp64 run) and
// of the weights; a rank sends and receives (ranks - 1) / ranks of either once a step. With one rank nothing moves.
//
// Rounds of gradients begin while the backward of lower layers goes on: it ends with the first parameters, so rounds
// go from the last to the first. Invariants:
//  (1) Every rank starts all rounds of a step, in one order, whatever its own gradients are or when they are final.
//  (2) At most kRoundsInFlight rounds have been started and have not ended. They end in their order.
//  (3) A round reads, and changes, gradients of parameters that are final; what a sum is does not depend on time.
//  (4) A device's rounds run in a queue beside the backward's, for which they have no wait: its host runs ahead, and
//      would find no round done that it could end.
//  (5) After the constructor nothing takes memory: a rank never fails between two rounds, which others wait for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/side_queue.h"
#include "worker/optim/parameter.h"
#include "worker/optim/shards.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

// The names of the collectives.
inline constexpr char kGradientsName[] = "gradients", kWeightsName[] = "weights";

class ShardExchange {
 public:
  // Takes all the memory of the exchange, on the device of the parameters (common/cost/state_shards.h counts it).
  // Throws c10::OutOfMemoryError. `side_queue`: where the parameters' device has one. `ranks` and `parameters` outlive
  // it; REQUIRES: ranks and shards are of one size.
  ShardExchange(Communicator& ranks, const OptimizerShards& shards, std::vector<Parameter>& parameters,
                std::unique_ptr<SideQueue> side_queue = nullptr);
  ~ShardExchange();  // waits for what is in flight
  ShardExchange(const ShardExchange&) = delete;
  ShardExchange& operator=(const ShardExchange&) = delete;

  // Says that nothing will be added in this step to the gradients of parameters[first] and of those behind it. Ends
  // rounds that are done and starts those that can be, without waiting. CHECKs that they were not final before: a
  // caller that says it twice has added to sums. An error is FinishReduction's.
  void GradientsAreFinal(int64_t first);
  // The same of all parameters, whatever was said before.
  void AllGradientsAreFinal();
  // Sums what is left: afterwards gradients of the elements that this rank owns are the sums, the others are this
  // rank's own still, and none is final for the next step. REQUIRES: all are final. Errors: Unavailable - a rank is
  // gone; some elements are summed and others not.
  absl::Status FinishReduction();
  // Returns the rounds of the reduction that this rank has started.
  int64_t rounds_started() const { return static_cast<int64_t>(started_); }

  // Brings all ranks the weights of every element from its owner. Errors: Unavailable - a rank is gone; some weights
  // are of this step and others of the last.
  absl::Status GatherWeights();

 private:
  // The buffers of a round in flight, as bytes.
  struct Flight {
    at::Tensor all_parts, scratch, own_part;
    std::unique_ptr<PendingCollective> pending;  // null: free
  };

  // The i-th round of a reduction, and of a gathering.
  const ShardRound& ReduceRound(size_t i) const { return rounds_[rounds_.size() - 1 - i]; }
  Flight& FlightOf(size_t i) { return flights_[i % flights_.size()]; }
  at::Tensor Gradients(const SlabPiece& piece) const;
  at::Tensor Weight(const SlabPiece& piece) const;

  bool HasFreeFlight() const { return started_ - ended_ < flights_.size(); }
  bool NextIsFinal() const;
  bool CanEnd();
  void Advance();
  void RunBeside(const std::function<void()>& work);
  void StartReduce();
  void EndReduce();
  void StartGather(size_t i);
  absl::Status EndGather(size_t i);

  Communicator& ranks_;
  std::vector<Parameter>& parameters_;
  const std::vector<ShardRound> rounds_;
  std::vector<Flight> flights_;
  // The reduction that is going on.
  int64_t final_from_;              // the first parameter whose gradients are final
  size_t started_ = 0, ended_ = 0;  // rounds
  absl::Status error_;
  std::unique_ptr<SideQueue> side_queue_;  // ends first: it uses the flights. Null: there is one rank, or a CPU
};

}  // namespace stemma::worker
