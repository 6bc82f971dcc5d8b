#include "common/cost/state_shards.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "common/base/round_up.h"
#include "common/cost/state_slabs.h"
#include "common/model/model_tensors.h"

namespace stemma {

int64_t RoundPartElements(int64_t round_elements, int64_t ranks) {
  return std::max(round_elements / ranks / kStateSlabUnit * kStateSlabUnit, kStateSlabUnit);
}

StateShare LargestShare(const ModelConfig& config, int64_t ranks) {
  if (ranks == 1) return {.elements = config.num_parameters()};
  const int64_t part_max = RoundPartElements(kRoundElements, ranks);
  StateShare share;
  int64_t bucket = 0, rounds = 0;
  const auto close_bucket = [&] {
    const int64_t part = RoundUpToSlabUnit(DivideUp(bucket, ranks));
    share.elements += part;
    share.part_elements = std::max(share.part_elements, std::min(part, part_max));
    rounds += DivideUp(part, part_max);
    bucket = 0;
  };
  for (const TensorSpec& tensor : ModelTensors(config)) {
    bucket += RoundUpToSlabUnit(
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<int64_t>()));
    if (bucket >= kBucketElements) close_bucket();
  }
  if (bucket > 0) close_bucket();
  share.in_flight = std::min(rounds, kRoundsInFlight);
  return share;
}

}  // namespace stemma
