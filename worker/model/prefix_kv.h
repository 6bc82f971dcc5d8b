// The K/V of a cluster's prefixes and the gradients that waves add to them, as the layers of a wave see them (the
// paper, Sections 3.2 and 4.4): who owns which rows, and how they come here, is the implementation's business.
//
// A wave calls it layer by layer, in forward and in backward:
//
//   forward    Prefetch(0);  for l ascending:   Prefetch(l + 1)   Get(l, prefix)... layer l runs;   Rest
//   backward   Prefetch(L-1); for l descending: Prefetch(l - 1)   Get(l, prefix)... layer l runs   Reduce(l);   Rest
//
// A layer is prefetched once before it is got, one layer ahead of the one at work. A wave prefetches every layer, and
// reduces every layer in backward, also where none of its segments has a prefix: these are the places of collectives.
// What Get returned is valid until the next Prefetch, so that two layers are here at most.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/backend/attention.h"

namespace stemma::worker {

// What rows of a prefix are wanted for.
enum class PrefixUse {
  kRead,          // K and V, in a forward
  kAddGradients,  // gK and gV beside, in a backward
};

class PrefixKv {
 public:
  virtual ~PrefixKv() = default;

  // Starts to bring a layer's K/V here.
  virtual void Prefetch(int64_t layer) = 0;

  // Returns all rows of a prefix in a layer. Accumulators of their gradients are there where they are wanted, and may
  // be where they are not.
  virtual AncestorKv Get(int64_t layer, int64_t prefix, PrefixUse use) = 0;

  // Takes a wave's gradients of a layer to the owners of the rows.
  virtual void Reduce(int64_t layer) = 0;

  // Frees what was brought here, when what was begun has ended.
  virtual void Rest() = 0;
};

}  // namespace stemma::worker
