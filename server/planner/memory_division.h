// How a worker's memory is divided before it loads anything: what the model's state takes, what is left to activations
// and to tapes in host memory, whether parameters are sharded, and where the optimizer's states live. Pure.
//
// Where the run leaves it open (shard_parameters: auto), parameters are sharded if one rollout of the model's longest
// context, half prompt and half response, could not be trained beside whole ones, and sharding frees an eighth of the
// budget or more.
// Under a budget the optimizer's states stay on the device as long as such a rollout can be trained beside them; else
// they go to host memory, if that has room.
// Where host and device are one memory and no budget is given, moving them gains nothing, so they stay.
// The head's chunks are 512 rows; on a device with memory of its own up to 2,048, of which the logits are at most a
// 64th of the budget, or of all that the device has.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "server/planner/memory_choice.h"
#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

// The memory that a worker reports when it joins.
struct WorkerMemory {
  int64_t device_free_bytes = 0;  // 0: not known
  int64_t host_free_bytes = 0;    // 0: the device's memory is the host's
  int64_t device_bytes = 0;       // all that it has; 0: not known
};

// Refuses what is wrong before any worker is there. Errors: InvalidArgument - a budget, or a host memory, smaller than
// the state of this model that must lie there, naming field and bytes.
absl::Status CheckMemory(const ModelConfig& model, const v1::RunConfig& run);

// `run` with memory_budget_bytes, host_memory_bytes, shard_parameters, optimizer_residency and head_chunk_tokens filled
// in where they are not given.
// Errors: ResourceExhausted - the worker's memory is too small for the model, naming the bytes; InvalidArgument - what
// is given is more than the worker's device has, naming both; CheckMemory's.
absl::StatusOr<v1::RunConfig> DivideMemory(const ModelConfig& model, const WorkerMemory& memory,
                                           const v1::RunConfig& run);

// Returns what the state leaves on the device, in a divided configuration (in host memory: common/cost/state_bytes.h).
int64_t ActivationBytes(const ModelConfig& model, const v1::RunConfig& run);

// "", or why a plan does not fit a worker's memory though it fitted the one that it was made for.
std::string PlanProblem(const v1::PlanReport& report, const ModelConfig& model, const v1::RunConfig& run);

// How clusters are computed with what is left.
MemoryOptions MemoryOptionsOf(const ModelConfig& model, const v1::RunConfig& run, const Rates& rates,
                              bool forward_only);

}  // namespace stemma::server
