#include "common/admission/log_prob_sources.h"

#include <algorithm>
#include <utility>

namespace stemma {
namespace {

std::vector<std::string> OnlyCheckpoints(std::vector<std::string> weights) {
  std::erase(weights, std::string(kPolicyWeights));
  return weights;
}

}  // namespace

std::vector<std::string> WeightsOfPasses(const v1::UpdateHeader& header) {
  std::vector<std::string> weights;
  for (const v1::LogProbSource* source : {&header.old(), &header.ref()}) {
    if (source->from() != v1::LogProbSource::WEIGHTS) continue;
    if (std::find(weights.begin(), weights.end(), source->weights()) == weights.end()) {
      weights.push_back(source->weights());
    }
  }
  return weights;
}

std::vector<std::string> CheckpointsReadBy(const v1::UpdateHeader& header) {
  return OnlyCheckpoints(WeightsOfPasses(header));
}

std::vector<std::string> CheckpointsReadBy(const TrainingRequest& request) {
  if (request.has_loss()) return CheckpointsReadBy(request.update);
  return OnlyCheckpoints({request.log_prob.weights()});
}

}  // namespace stemma
