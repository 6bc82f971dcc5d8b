#include "common/cost/state_shards.h"

#include <algorithm>
#include <map>

#include "common/base/round_up.h"
#include "common/cost/state_slabs.h"

namespace stemma {
int64_t RoundPartElements(int64_t round_elements, int64_t ranks) {
  return std::max(round_elements / ranks / kStateSlabUnit * kStateSlabUnit, kStateSlabUnit);
}

int64_t NumParameters(const ModelShard& shard) {
  if (shard.place.tp_size == 1 && shard.place.pp_size == 1) return shard.config.num_parameters();
  int64_t parameters = 0;
  for (const LocalTensor& tensor : LocalTensorsOfOneExpert(shard)) parameters += tensor.elements();
  return parameters;
}

int64_t PartialGradientElements(const ModelShard& shard) {
  if (shard.place.tp_size == 1) return 0;
  std::map<int64_t, int64_t> of_layers;  // what follows the layers is -1's
  for (const LocalTensor& tensor : LocalTensorsOfOneExpert(shard)) {
    if (PlacementOf(tensor.spec, shard).partial_over_tp) of_layers[tensor.spec.layer] += tensor.elements();
  }
  int64_t largest = 0;
  for (const auto& [layer, elements] : of_layers) largest = std::max(largest, elements);
  return largest;
}

int64_t StageGradientElements(const ModelShard& shard) {
  if (shard.place.pp_size == 1) return 0;
  int64_t largest = 0;
  for (const LocalTensor& tensor : LocalTensorsOfOneExpert(shard)) {
    if (!PlacementOf(tensor.spec, shard).partial_over_first_and_last_stage) continue;
    largest = std::max(largest, std::min(tensor.elements(), kStageGradientElements));
  }
  return largest;
}

StateShare LargestShare(const ModelShard& shard, int64_t ranks) {
  if (ranks == 1) return {.elements = NumParameters(shard)};
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
  for (const LocalTensor& tensor : LocalTensorsOfOneExpert(shard)) {
    bucket += RoundUpToSlabUnit(tensor.elements());
    if (bucket >= kBucketElements) close_bucket();
  }
  if (bucket > 0) close_bucket();
  share.in_flight = std::min(rounds, kRoundsInFlight);
  return share;
}

}  // namespace stemma
