// Unmasked tokens of a mini-batch by sample. Rollouts with one sample_id are parts of one sample; a rollout without is
// a sample of its own. The seq-mean-... aggregations average over samples, seq-mean-token-mean over a sample's tokens
// before. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

// Ones of the response's mask; 0 for an empty response.
int64_t UnmaskedTokens(const v1::Rollout& rollout);

class SampleTokens {
 public:
  void Add(const v1::Rollout& rollout);

  // Counts over the rollout's sample. A rollout with a sample_id must have been added.
  int64_t UnmaskedTokensOfSample(const v1::Rollout& rollout) const;
  int64_t num_samples() const { return num_single_ + static_cast<int64_t>(tokens_by_id_.size()); }

 private:
  absl::flat_hash_map<std::string, int64_t> tokens_by_id_;
  int64_t num_single_ = 0;
};

}  // namespace stemma
