// Log-probs of a trace line's responses under the server's current weights, or a checkpoint's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/calls/connection.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

struct RolloutLogProbs {
  std::vector<double> log_probs;  // [R]; empty: the rollout was not run (an empty response)
  std::vector<double> entropy;    // [R], when asked for
};

struct LogProbQuery {
  std::string request_id;
  std::string weights = "policy";  // or a checkpoint's name
  double temperature = 1;
  bool entropy = false;
};

// Returns them by rollout_id.
absl::StatusOr<std::map<std::string, RolloutLogProbs>> QueryLogProbs(Connection& connection, const LogProbQuery& query,
                                                                     const std::vector<v1::PromptGroup>& groups);

}  // namespace stemma::cli
