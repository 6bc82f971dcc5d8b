// Streams optimizer states that live in host memory through the device: while a slab of them is stepped, the next comes
// in and the one before goes out. Called by worker/optim/adamw.h.
//
// All parameters share one pipeline (worker/optim/slab_order.h). Its device buffers are one block of StateSlabBytes
// (common/cost/state_slabs.h), allocated once and freed at the end; when StreamStates returns, every copy has ended and
// the host holds the new states. Errors: a copy that fails throws c10::Error, naming where the slab begins, after all
// copies in flight were cancelled. Then some slabs have been stepped and others not, and where a copy out failed or was
// cancelled that slab's states may be half written: nothing may be computed with these parameters any more. Before the
// first step nothing has changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "common/cost/state_slabs.h"
#include "worker/memory/copy_engine.h"
#include "worker/optim/parameter.h"
#include "worker/optim/ranges.h"

namespace stemma::worker {

struct HostStateOptions {
  CopyEngine* copy_engine = nullptr;  // needed where a parameter's states are in host memory
  int64_t slab_elements = 0;          // rounded up to kStateSlabUnit; 0: what the device and the run have
};

// Some elements of a parameter, all on the device: 1-d views of one length.
struct StatePart {
  const Parameter* parameter;
  at::Tensor weight, grad;                 // of the parameter
  at::Tensor master, exp_avg, exp_avg_sq;  // of a buffer; a master that is the weight: of the parameter
  int64_t slab_begin = 0;                  // where the part stands in its slab, in elements
};

// Calls `step` once for each slab of the ranges, with all its parts; it updates weights and states in place. The states
// of these parameters are in host memory, their dtypes equal.
void StreamStates(const std::vector<Parameter>& parameters, const ParameterRanges& ranges,
                  const HostStateOptions& options, const std::function<void(const std::vector<StatePart>&)>& step);

}  // namespace stemma::worker
