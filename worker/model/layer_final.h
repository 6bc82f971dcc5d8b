// Who hears, while the last backward of a step runs, that a layer's gradients are final: nothing will be added to them,
// nor to those of the layers after it and of what follows the layers (final norm; head, unless it is the embedding).
// Layers are named once each, the last one first. What comes before the layers is final when the backward has ended.
//
// The caller of a backward knows whether it is the last one; the functions of worker/model only name the layers.
#pragma once

#include <cstdint>
#include <functional>

namespace stemma::worker {

using LayerFinal = std::function<void(int64_t layer)>;

inline void Tell(const LayerFinal& layer_final, int64_t layer) {
  if (layer_final) layer_final(layer);
}

}  // namespace stemma::worker
