// Which shapes of calls have plans of the faster library.
//
// A plan takes as long as many calls gain by it, and nobody knows how often a shape will come again. So the calls of a
// shape go without until what they would have gained is what its plans cost: whatever comes, that is at most twice what
// the better of all plans and none would have cost (the ski-rental rule). Lengths that come once need no plan, and
// lengths that come in every step soon have one.
//
// Used by FlashAttention, on the engine's thread. Pure; its memory grows with the shapes that were admitted, of which
// buckets leave a few thousand.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "worker/backend/cuda/attention/buckets.h"

namespace stemma::worker::cuda {

// On an H100 the plans of a shape's forward and backward take 70 ms, and a TFLOP of forward gains 4.5 ms with its
// backward.
inline constexpr double kFlopsOfPlans = 1.5e13;

class PlanLedger {
 public:
  // `flops_of_plans`: FLOPs of forwards that gain, with their backwards, what the plans of one shape take. 0: plans
  // cost nothing.
  explicit PlanLedger(double flops_of_plans) : flops_of_plans_(flops_of_plans) {}

  // Begins a forward of so many FLOPs. A shape gets its plans here, so that a forward has run with them before a
  // backward asks for them.
  void Begin(const DenseShape& shape, double flops);
  bool HasPlans(const DenseShape& shape) const;

 private:
  struct Spent {
    double flops = 0;
    bool has_plans = false;
  };
  using Key = std::array<int64_t, 7>;
  static Key KeyOf(const DenseShape& shape);

  const double flops_of_plans_;
  std::map<Key, Spent> spent_;
};

}  // namespace stemma::worker::cuda
