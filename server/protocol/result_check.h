// The results that a job may bring: each rollout of its request once, with as many numbers as the response has tokens.
// So what a worker sends is bounded by what the client sent, whatever the worker says.
//
// Thread safety: none; owned by the coordinator thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/admission/training_request.h"

namespace stemma::server {

class ResultCheck {
 public:
  explicit ResultCheck(std::shared_ptr<const TrainingRequest> request);

  // Errors: InvalidArgument - no rollout, or one that the request does not have, a second result of a rollout, a number
  // of log-probs or entropies that is neither none nor the response's, a dtype that is none.
  absl::Status Add(const v1::GroupResult& result);

  // Whether each rollout that has response tokens has brought its log-probs, as all must in a log-prob pass. Errors:
  // INTERNAL - the first one of the request that has not, and how many have not.
  absl::Status CheckAllCame() const;

 private:
  struct Expected {
    const v1::PromptGroup* group = nullptr;
    size_t tokens = 0;
    bool seen = false;
    bool has_log_probs = false;
  };

  std::shared_ptr<const TrainingRequest> request_;
  absl::flat_hash_map<std::string, Expected> rollouts_;  // by rollout_id
};

}  // namespace stemma::server
