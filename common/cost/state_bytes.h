// Bytes that a worker holds between steps, whatever it trains on; in a gang, the rank that holds most. Torch-free
// arithmetic: the server divides a device by it before anything is loaded, the worker's tests hold it to measured
// bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/dtype_names.h"
#include "common/model/model_config.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

// Return the bytes of one element: of weights and activations; of gradients and statistics.
int64_t RunBytes(RunDtype dtype);
int64_t AccumulateBytes(RunDtype dtype);

// Bytes of one parameter's optimizer states: both moments, and the fp32 master of a bf16 run.
int64_t OptimizerBytes(RunDtype dtype);

struct StateBytes {
  int64_t weights = 0;  // tied embeddings once; sharded: the rank's part, and the slots of gathered ones
  int64_t gradients = 0;
  int64_t optimizer = 0;  // of the elements that the rank owns
  int64_t tables = 0;     // cosines and sines of RoPE
  // During APPLY: gradients of one slab times the clip, with states on the device (a CPU takes less of it in a bf16
  // run) and in host memory.
  int64_t clipped_on_device = 0, clipped_streamed = 0;
  int64_t slabs = 0;      // of optimizer states that come from host memory, during APPLY
  int64_t exchange = 0;   // buffers in which ranks exchange gradients and weights; 0: one rank
  int64_t gathering = 0;  // of sharded parameters beside their slot, in a pass: as much as the largest unit
  // Gradients of all units, in a step that reduces those of sharded parameters once. No sum below has them.
  int64_t gradient_sums = 0;
  int64_t total() const { return weights + gradients + optimizer + tables + exchange; }
  // An unspecified residency is the device's. Between steps; APPLY adds `apply`.
  int64_t device(v1::OptimizerResidency residency) const { return total() - host(residency); }
  int64_t host(v1::OptimizerResidency residency) const { return residency == v1::HOST ? optimizer : 0; }
  int64_t clipped(v1::OptimizerResidency residency) const {
    return residency == v1::HOST ? clipped_streamed : clipped_on_device;
  }
  int64_t apply(v1::OptimizerResidency residency) const {
    return clipped(residency) + (residency == v1::HOST ? slabs : 0);
  }
  int64_t device_peak(v1::OptimizerResidency residency) const {
    return device(residency) + std::max(apply(residency), gathering);
  }
};

// Returns the bytes of a rank of the mesh, of the pipeline stage that holds most: of what a tensor-parallel rank holds
// of the model (common/model/model_shard.h) the data- and context-parallel ranks, which hold the same, divide the
// optimizer's states, and where they are `sharded` its parameters and gradients too. `config` is the whole model's.
StateBytes StateBytesOf(const ModelConfig& config, RunDtype dtype, const v1::Mesh& mesh = {}, bool sharded = false);

// Tells whether ranks divide the parameters, in a run that says on or off: one rank alone never does.
bool ShardsParameters(const v1::RunConfig& run);

// Returns the bytes of a run's dtype, mesh and sharding.
StateBytes StateBytesOf(const ModelConfig& config, const v1::RunConfig& run);

// Returns the bytes of the gradients of the elements whose optimizer states a rank owns.
int64_t KeptGradientBytes(const ModelConfig& config, const v1::RunConfig& run);

// Returns the host memory that optimizer states leave to tapes, in a run whose memory is divided. The server plans by
// it, and it is the size of the worker's arena.
int64_t HostTapeBytesMax(const ModelConfig& config, const v1::RunConfig& run);

}  // namespace stemma
