// What a sweep calls before it reads the parameters of a unit (common/cost/parameter_units.h) or adds to its gradients.
// Phases A, B and C call it layer by layer; so it is known which layer comes next, and sharded parameters can be
// gathered while another layer runs: worker/model/sharded_units.h.
//
// With whole parameters there is nothing to do: WholeParameters(). Engine thread only. Throws CollectiveError where a
// rank has gone.
#pragma once

#include <cstdint>

namespace stemma::worker {

enum class UnitUse {
  kRead,      // its weights
  kTrain,     // its weights, and gradients are added
  kGradient,  // gradients are added; its weights are not read
};

class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;

  // Make a unit ready: it is here from the call on until the next one, and no other is. Called once for each unit in a
  // sweep.
  virtual void Embedding(UnitUse use) = 0;
  virtual void Layer(int64_t layer, UnitUse use) = 0;  // counted from this rank's first one
  virtual void Head(UnitUse use) = 0;
  // Returns how long calls have waited for other ranks, in all.
  virtual double waited_s() const = 0;
};

// Returns the strategy of ranks that have all parameters of their layers. It has no state and lives for ever.
ParameterAccess& WholeParameters();

}  // namespace stemma::worker
