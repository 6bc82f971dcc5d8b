// The metrics of a step and of a request, under the names that rollout frameworks plot. docs/metrics.md lists them.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "google/protobuf/map.h"
#include "server/protocol/request_plan.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

using Metrics = google::protobuf::Map<std::string, double>;

struct StepMetricsInput {
  const v1::UpdateHeader& header;
  const v1::StepReport& report;
  const v1::StateBytes& state;
  const StepNumbers& numbers;
  const internal::v1::Vote& vote;  // of all ranks together
  double apply_s = 0;              // of the slowest rank
  absl::Duration elapsed;          // from Prepare sent to Applied received
  // By rank; fewer than two: nothing is said of ranks.
  std::span<const internal::v1::Vote> votes = {};
  std::span<const internal::v1::Applied> applied = {};
  uint32_t expert_sets = 1;  // ranks with experts of their own (ep)
  // The most that the check at the start refused on any rank; absent: none of them checks its kernels.
  std::optional<size_t> kernels_off = {};
};

// Sets what the request's pass for log-probs took, if there was one: its first step has it, whatever becomes of that.
void SetLogProbSeconds(const internal::v1::StepSums& sums, Metrics& metrics);

// Quotients whose denominator is zero are left out.
void SetStepMetrics(const StepMetricsInput& input, Metrics& metrics);

// Over the steps that were applied (if none was, over those that had nothing to compute): means of actor/* and of
// ratios, sums of tokens and seconds.
void SetRequestMetrics(const v1::UpdateResult& result, Metrics& metrics);

}  // namespace stemma::server
