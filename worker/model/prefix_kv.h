// The K/V of a cluster's prefixes and the gradients that waves add to them, as the layers of a wave see them (the
// paper, Sections 3.2 and 4.4): who owns which rows, and how they come here, is the implementation's business.
//
// A wave calls it layer by layer, in forward and in backward:
//
//   forward    Prefetch(0);  for l ascending:   Prefetch(l + 1)   Get(l, prefix)... layer l runs
//   backward   Prefetch(L-1); for l descending: Prefetch(l - 1)   Get(l, prefix)... layer l runs   Reduce(l)
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

class PrefixKv {
 public:
  virtual ~PrefixKv() = default;

  // Starts to bring a layer's K/V here.
  virtual void Prefetch(int64_t layer) = 0;

  // All rows of a prefix in a layer, with accumulators of their gradients but in a forward-only pass.
  virtual AncestorKv Get(int64_t layer, int64_t prefix) = 0;

  // Takes a wave's gradients of a layer to the owners of the rows.
  virtual void Reduce(int64_t layer) = 0;
};

// All rows are this rank's own, and gradients are added in place: the hot set itself. Phase A fills it, Phase C empties
// it (worker/model/prefix.h).
class LocalPrefixKv final : public PrefixKv {
 public:
  void Prefetch(int64_t /*layer*/) override {}
  AncestorKv Get(int64_t layer, int64_t prefix) override;
  void Reduce(int64_t /*layer*/) override {}

  std::vector<AttentionSpan> spans;        // rows of each prefix among the packed ones; none empty
  std::vector<at::Tensor> k_TKE, v_TKE;    // per layer; the tape holds views of them
  std::vector<at::Tensor> gk_TKE, gv_TKE;  // per layer; empty in a forward-only pass
};

}  // namespace stemma::worker
