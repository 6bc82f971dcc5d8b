// Distributions of a trace and what prefix reuse can save on it. Pure.
//
// Tokens: a dense trajectory runs P - 1 + R rows, a reused group P - 1 + sum of R; the last response token is never
// run. The bound on token work saved is their ratio, N (P + R) / (P + N R) for equal lengths; attention of suffixes on
// the prefix is not saved, so seconds save less.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/output/records.h"
#include "client/cli/trace/reuse_bound.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

class TraceStat {
 public:
  // Adds the groups of a request. Errors: InvalidArgument - an empty prompt, or a response_mask that is not the
  // response's, of which no count would be true; names the group. What is counted is then of no use.
  absl::Status Add(const std::vector<v1::PromptGroup>& groups);
  Record ToRecord() const;

 private:
  int64_t requests_ = 0;
  std::vector<int64_t> prompt_tokens_;    // P per group
  std::vector<int64_t> response_tokens_;  // R per rollout
  std::vector<int64_t> rollouts_;         // N per group
  int64_t unmasked_tokens_ = 0;
  ReuseBound bound_;
};

}  // namespace stemma::cli
