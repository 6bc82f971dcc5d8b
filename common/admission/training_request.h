// One validated request with its payload. Built by RequestBuilder, then constant: the server holds a payload once and
// everything that needs it shares it. A request that is `refused` never runs: the server only looks whether it repeats
// an accepted one, whose outcome it then answers. It compares digests, or, where the stream was not read to its end and
// there is no digest, ids alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

struct TrainingRequest {
  enum class Kind { kUpdate, kVerify, kLogProb };

  bool has_loss() const { return kind != Kind::kLogProb; }
  const v1::RequestHeader& header() const { return has_loss() ? update.request() : log_prob.request(); }

  Kind kind = Kind::kUpdate;
  v1::UpdateHeader update;     // kUpdate, kVerify
  v1::LogProbHeader log_prob;  // kLogProb
  std::vector<v1::PromptGroup> groups;
  std::string digest;      // SHA-256 of the request (common/base/digest.h); empty: it was not read to its end
  uint64_t num_steps = 1;  // optimizer steps; 1 of what makes none
  uint64_t num_rollouts = 0;
  uint64_t num_tokens = 0;  // prompts once per group, and responses
  uint64_t bytes = 0;       // of the groups as messages
  // Why it is not accepted. A client may send again what was accepted by older rules or higher limits: that is
  // answered.
  absl::Status refused;
};

// Returns the request; when nobody holds a large one any more, its memory goes back to the system. It lies all over the
// heap, which would keep it until the next one.
std::shared_ptr<const TrainingRequest> GivenBackOnceDropped(std::shared_ptr<const TrainingRequest> request);

}  // namespace stemma
