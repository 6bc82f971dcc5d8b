#include "worker/optim/slab_order.h"

#include <glog/logging.h>

#include <algorithm>

#include "common/cost/state_slabs.h"

namespace stemma::worker {

std::vector<Slab> CutSlabs(const ParameterRanges& ranges, int64_t slab_elements) {
  CHECK_GE(slab_elements, 1);
  slab_elements = RoundUpToSlabUnit(slab_elements);
  std::vector<Slab> slabs;
  int64_t slab_end = slab_elements;  // of the last slab: where its next piece goes; full, so that the first opens one
  for (const ParameterRange& range : ranges) {
    for (int64_t begin = range.begin; begin < range.end();) {
      if (slab_end == slab_elements) {
        slabs.emplace_back();
        slab_end = 0;
      }
      const int64_t count = std::min(slab_elements - slab_end, range.end() - begin);
      slabs.back().push_back({range.parameter, begin, count, slab_end});
      begin += count;
      slab_end += RoundUpToSlabUnit(count);
    }
  }
  return slabs;
}

std::vector<SlabAction> SlabOrder(int64_t slabs) {
  std::vector<SlabAction> order;
  const auto add = [&](SlabActionKind kind, int64_t slab) {
    if (slab >= 0 && slab < slabs) order.push_back({kind, slab, slab % kStateSlabsOnDevice});
  };
  add(SlabActionKind::kStartIn, 0);
  for (int64_t slab = 0; slab < slabs; ++slab) {
    add(SlabActionKind::kWaitOut, slab + 1 - kStateSlabsOnDevice);  // its buffer is the next slab's
    add(SlabActionKind::kStartIn, slab + 1);
    add(SlabActionKind::kWaitIn, slab);
    add(SlabActionKind::kStep, slab);
    add(SlabActionKind::kStartOut, slab);
  }
  for (int64_t slab = slabs + 1 - kStateSlabsOnDevice; slab < slabs; ++slab) add(SlabActionKind::kWaitOut, slab);
  return order;
}

}  // namespace stemma::worker
