// AdamW on fp32 (fp64) masters by ATen's fused op, the gradient norm, and the clip. Called by worker/engine.
//
// States (moments, and masters that are not the weights themselves) live on the device or in host memory; from there
// AdamwStep streams them through the device in slabs (worker/optim/state_stream.h), with the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stemma/v1/training.pb.h"
#include "worker/backend/backend.h"
#include "worker/optim/parameter.h"
#include "worker/optim/ranges.h"
#include "worker/optim/state_stream.h"

namespace stemma::worker {

std::vector<int64_t> ElementsOf(const std::vector<Parameter>& parameters);

// All elements of all parameters.
ParameterRanges AllRanges(const std::vector<Parameter>& parameters);

// Sum of squares over the gradients of these ranges, in fp64, in their order.
double GradNormSquared(const Backend& backend, const std::vector<Parameter>& parameters, const ParameterRanges& ranges);

// Returns the name of the first parameter with a non-finite number in the gradients of these ranges; empty: none.
std::string FirstNonfinite(const Backend& backend, const std::vector<Parameter>& parameters,
                           const ParameterRanges& ranges);
// Says why a sum of squares over these ranges is not finite: a gradient is not, or their squares overflow.
std::string NonfiniteNormText(const Backend& backend, const std::vector<Parameter>& parameters,
                              const ParameterRanges& ranges);

void ZeroGradients(std::vector<Parameter>& parameters);

struct AdamwUpdate {
  const v1::AdamParams& adam;
  double clip;   // times the gradients
  int64_t step;  // of the bias correction; 1 = first
};

// Steps these ranges, slab by slab, by AdamW with bias correction on the clipped gradients. The gradients themselves
// stay as they are, so that a step on weights and states put back gives the same bits again; a clip below 1 takes
// ClippedSlabBytes (common/cost/state_slabs.h) of the device. Throws as StreamStates does. Returns the name of a
// parameter of which it wrote a weight or a state that is not finite; empty: all are finite. Only weights and second
// moments are read for that, while the slab is in a CPU's caches: a first moment that is not finite makes its weight
// NaN or infinite in the same step, an infinite second moment does not (it stops the weight for ever).
std::string AdamwStep(const Backend& backend, std::vector<Parameter>& parameters, const ParameterRanges& ranges,
                      const AdamwUpdate& update, const HostStateOptions& host = {});

}  // namespace stemma::worker
