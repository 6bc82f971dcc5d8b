#include "common/trace/sample_tokens.h"

#include "common/base/arrays.h"
#include "glog/logging.h"

namespace stemma {

int64_t UnmaskedTokens(const v1::Rollout& rollout) {
  return MaskView(rollout.response_mask(), TokenArray(rollout.response_tokens()).size()).CountOnes();
}

void SampleTokens::Add(const v1::Rollout& rollout) {
  if (rollout.has_sample_id()) {
    tokens_by_id_[rollout.sample_id()] += UnmaskedTokens(rollout);
  } else {
    ++num_single_;
  }
}

int64_t SampleTokens::UnmaskedTokensOfSample(const v1::Rollout& rollout) const {
  if (!rollout.has_sample_id()) return UnmaskedTokens(rollout);
  const auto found = tokens_by_id_.find(rollout.sample_id());
  CHECK(found != tokens_by_id_.end()) << "sample " << rollout.sample_id() << " was not added";
  return found->second;
}

}  // namespace stemma
