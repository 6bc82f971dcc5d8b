// The loss of one wave: from the payload's arrays and the update header to each row's dL/dlog_prob. The wave's rows
// reach the head in member order; a member's rows are its response tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trace/sample_tokens.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/payload.h"
#include "worker/loss/aggregation.h"
#include "worker/loss/policy_loss.h"
#include "worker/ops/head.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

// What an UpdateHeader asks for, read once per Prepare.
struct LossPlan {
  LossOptions options;
  AggMode agg_mode = AggMode::kTokenMean;
  double loss_scale_factor = 0;
  double temperature = 1;
  double denominator = 0;
  v1::LogProbSource::From old_from = v1::LogProbSource::FROM_UNSPECIFIED;
  v1::LogProbSource::From ref_from = v1::LogProbSource::FROM_UNSPECIFIED;
  std::vector<double> prompt_mean_weight;  // by group index of the payload; prompt-mean only
  SampleTokens samples;                    // of the step's groups

  bool needs_entropy() const { return options.entropy_coeff != 0; }
};

absl::StatusOr<LossPlan> MakeLossPlan(const internal::v1::Prepare& prepare, const Payload& payload);

class WaveLoss {
 public:
  WaveLoss(const LossPlan& plan, const Payload& payload, const std::vector<MemberRows>& members);

  std::span<const int64_t> targets() const { return targets_; }
  std::span<const RowRange> rollouts() const { return rollouts_; }
  const LossSums& sums() const { return sums_; }

  // RowGradient of the head.
  void Gradient(RowRange range, std::span<const double> log_prob, std::span<const double> entropy,
                std::span<double> dlog_prob, std::span<double> dentropy);

 private:
  void AddMember(const Payload& payload, const MemberRows& member);

  const LossPlan& plan_;
  std::vector<int64_t> targets_;
  std::vector<RowRange> rollouts_;
  std::vector<double> old_, ref_, advantage_, importance_, loss_weight_, weight_;
  std::vector<uint8_t> mask_;
  LossSums sums_;
};

}  // namespace stemma::worker
