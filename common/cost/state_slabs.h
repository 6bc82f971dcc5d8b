// The device bytes of APPLY. It works slab by slab; optimizer states in host memory (optimizer_residency: host) stream
// through the device, a fixed number of slabs at a time. Pure arithmetic: worker/optim cuts by it, a plan reports it as
// APPLY's working bytes.
//
// All parameters stand in one flat order, each rounded up to kStateSlabUnit elements, and the order is cut every
// `slab_elements`: small parameters share a slab, large ones take several, all slabs but the last are full.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/round_up.h"

namespace stemma {

// Borders inside a parameter, and places inside a slab, are multiples of this: 64 bytes of fp32. The fused op works in
// such units from a parameter's first element on, so a cut between them changes no bit.
constexpr int64_t kStateSlabUnit = 16;

// One slab is stepped, the next comes in, the last goes out.
constexpr int64_t kStateSlabsOnDevice = 3;

// Returns the elements of a slab of states that come from host memory, or that a CPU has. A CPU is fastest with slabs
// that its caches hold. On a GPU each costs a dozen launches, which take as long as the update of two million elements.
// GPUs train in bf16, with masters apart.
constexpr int64_t StateSlabElements(bool has_masters) { return int64_t{1} << (has_masters ? 22 : 18); }

// Elements of a slab of states that lie on a GPU, with masters apart: as many as one launch of the fused op takes,
// which has at most 320 blocks of 65,536 elements, of one parameter each. Eight blocks are left to the ends of
// parameters inside a slab; the others are two and more for each of the multiprocessors of an H200 (132) or a B200
// (148). Slabs that stream are smaller: the link bounds them, and three are on the device.
constexpr int64_t kGpuSlabElements = 312 * int64_t{65536};

constexpr int64_t RoundUpToSlabUnit(int64_t elements) { return RoundUp(elements, kStateSlabUnit); }

struct StateSlabShape {
  int64_t elements = 0;       // of all parameters, each by RoundUpToSlabUnit
  int64_t states = 2;         // of an element: two moments; 3 with a master that is not the weight (bf16 runs)
  int64_t element_bytes = 4;  // of a state (fp64 runs: 8)
  int64_t slab_elements = StateSlabElements(/*has_masters=*/false);
};

constexpr int64_t StateSlabCount(const StateSlabShape& shape) {
  return DivideUp(shape.elements, RoundUpToSlabUnit(shape.slab_elements));
}

// Bytes of the device buffers, all of them from APPLY's begin to its end. 3 slabs unless there are fewer.
constexpr int64_t StateSlabBytes(const StateSlabShape& shape) {
  const int64_t slab_elements = std::min(RoundUpToSlabUnit(shape.slab_elements), shape.elements);
  return std::min(kStateSlabsOnDevice, StateSlabCount(shape)) * slab_elements * shape.states * shape.element_bytes;
}

// Bytes of the device buffer that a clip below 1 takes: one slab of gradients.
constexpr int64_t ClippedSlabBytes(const StateSlabShape& shape) {
  return std::min(RoundUpToSlabUnit(shape.slab_elements), shape.elements) * shape.element_bytes;
}

}  // namespace stemma
