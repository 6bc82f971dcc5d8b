// What streams through the device in APPLY, and in which order. Pure: sizes in, lists out; no LibTorch, threads or
// clocks. worker/optim/state_stream.h executes it; common/cost/state_slabs.h has the sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/optim/ranges.h"

namespace stemma::worker {

// Elements [begin, begin + count) of a parameter, from element `slab_begin` of the slab on. `begin` and `slab_begin`
// are multiples of kStateSlabUnit.
struct SlabPiece {
  int64_t parameter = 0, begin = 0, count = 0, slab_begin = 0;
  bool operator==(const SlabPiece&) const = default;
};
using Slab = std::vector<SlabPiece>;

// The ranges' elements in their order, cut every slab_elements (>= 1, rounded up to kStateSlabUnit).
std::vector<Slab> CutSlabs(const ParameterRanges& ranges, int64_t slab_elements);

enum class SlabActionKind { kStartIn, kWaitIn, kStep, kStartOut, kWaitOut };

struct SlabAction {
  SlabActionKind kind;
  int64_t slab;    // in the order of CutSlabs
  int64_t buffer;  // of the device, below kStateSlabsOnDevice
  bool operator==(const SlabAction&) const = default;
};

// While a slab is stepped, the next comes in and the one before goes out. A buffer takes a new slab only after the copy
// out of its last one was waited for.
std::vector<SlabAction> SlabOrder(int64_t slabs);

}  // namespace stemma::worker
