// How far the log-probs of a verification's two runs are apart. Holds those of a rollout from the first run that brings
// them to the other. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/admission/training_request.h"
#include "server/protocol/result_check.h"

namespace stemma::server {

class LogProbErrors {
 public:
  // `request`: with a loss.
  explicit LogProbErrors(const std::shared_ptr<const TrainingRequest>& request);

  // Takes what a rank computed of some rollouts. Errors: as ResultCheck::Add, of each run by itself.
  absl::Status Add(const v1::GroupResult& result, bool dense);

  // Checks that both runs brought each rollout that is run. Errors: INTERNAL, with how many are missing.
  absl::Status CheckAllCame() const;

  double max() const { return max_; }  // not a number where one of either run is not
  double mean() const { return tokens_ == 0 ? 0 : sum_ / static_cast<double>(tokens_); }
  uint64_t tokens() const { return tokens_; }

 private:
  void Compare(const std::vector<double>& a, const std::vector<double>& b);

  std::array<ResultCheck, 2> checks_;                              // of the run with shared prompts, of the dense one
  absl::flat_hash_map<std::string, std::vector<double>> waiting_;  // by rollout_id
  int64_t missing_ = 0;                                            // rollouts that run and were not compared yet
  double max_ = 0, sum_ = 0;
  uint64_t tokens_ = 0;
};

}  // namespace stemma::server
