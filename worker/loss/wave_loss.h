// The loss of one wave, on the device: from the payload's arrays to each row's dL/dlog_prob. The wave's rows reach the
// head in member order; a member's rows are its response tokens. Where ranks share the rows of the one member, a rank
// has some of them; a loss that needs whole rollouts is then computed of all rows by each rank, which takes its own.
//
// Called by worker/engine. What a loss reads goes to the device once per wave; nothing here waits for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "stemma/v1/training.pb.h"
#include "worker/backend/backend.h"
#include "worker/loss/loss_plan.h"
#include "worker/ops/head.h"

namespace stemma::worker {

// A rollout of a wave; what it points to outlives the WaveLoss's constructor.
struct LossMember {
  const v1::Rollout* rollout = nullptr;
  double weight = 0;  // w / D of its unmasked tokens
  // From the passes before the first step, where the plan's source is WEIGHTS; null: none were computed.
  const std::vector<double>* old_log_probs = nullptr;
  const std::vector<double>* ref_log_probs = nullptr;
};

// How ranks share the rows of a wave's one member.
struct SharedRows {
  bool is_first = false;  // of the ranks: what is computed of all rows counts once
  // Returns the own rows of a tensor of all.
  std::function<at::Tensor(const at::Tensor& x_T)> own;
  // Returns what the head says of all rows. Every rank calls it.
  std::function<HeadOutput(const HeadOutput& own)> gather;
};

// Sums over unmasked rows, in the host's memory. See LossSum for what each is.
struct LossSums {
  double pg = 0, kl = 0, entropy = 0;
  double clipped = 0, clipped_lower = 0;
  double neg_log_ratio = 0;
  double tokens = 0;
  double plain_entropy = 0;
  LossSums& operator+=(const LossSums& other);
};

class WaveLoss {
 public:
  // The plan, the backend and `shared` outlive it. `shared`: null: all rows are here.
  WaveLoss(const LossPlan& plan, const Backend& backend, const std::vector<LossMember>& members,
           const SharedRows* shared = nullptr);

  // Makes what the head's backward asks for rows of the wave, of whole rollouts where the loss needs them; `this`
  // outlives it.
  RowGradient gradient();
  // [kNumLossSums] fp64 on the device, complete after the head's backward.
  const at::Tensor& sums() const { return sums_; }

 private:
  bool whole_rollouts() const { return NeedsWholeRollouts(plan_.options.mode); }
  void Run(const LossRows& rows, const at::Tensor& log_prob_T, const at::Tensor& entropy_T,
           const at::Tensor& dlog_prob_T, const at::Tensor& dentropy_T, const at::Tensor& sums) const;
  void RunOnAllRows(const at::Tensor& log_prob_T, const at::Tensor& entropy_T, const at::Tensor& dlog_prob_T,
                    const at::Tensor& dentropy_T) const;

  const LossPlan& plan_;
  const Backend& backend_;
  const SharedRows* const shared_;
  LossRows rows_;
  at::Tensor sums_;
};

// `sums`: kNumLossSums numbers.
LossSums LossSumsOf(const double* sums);

}  // namespace stemma::worker
