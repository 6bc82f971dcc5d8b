// Which elements of the parameters an update is about: flat ranges, so that a shard of the optimizer is a list of them.
// Pure: sizes in, lists out; no LibTorch.
//
// Invariants of a list: ranges are in order of parameters and of elements, and none overlaps another; each begins at a
// multiple of kStateSlabUnit (common/cost/state_slabs.h) of its parameter and, unless it ends with the parameter, ends
// at one. A step of some ranges then gives the bits that a step of everything gives there.
#pragma once

#include <cstdint>
#include <vector>

namespace stemma::worker {

// Elements [begin, begin + count) of a parameter; count > 0.
struct ParameterRange {
  int64_t parameter = 0, begin = 0, count = 0;
  int64_t end() const { return begin + count; }
  bool operator==(const ParameterRange&) const = default;
};
using ParameterRanges = std::vector<ParameterRange>;

// Returns all elements of parameters of so many elements.
ParameterRanges RangesOfAll(const std::vector<int64_t>& parameter_elements);

// Returns the elements that are in both lists.
ParameterRanges Intersect(const ParameterRanges& a, const ParameterRanges& b);

// CHECKs the invariants.
void CheckRanges(const ParameterRanges& ranges, const std::vector<int64_t>& parameter_elements);

}  // namespace stemma::worker
