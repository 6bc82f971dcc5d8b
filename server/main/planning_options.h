// What the commands of `stemma-server` that plan without serving have in common: a model, a trace, and devices that
// need not be there. Each of them opens no port, answers on stdout and ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "server/planner/cost_model.h"
#include "server/planner/mesh_ranking.h"
#include "server/planner/published_devices.h"
#include "stemma/v1/run_config.pb.h"

namespace CLI {
class App;
}

namespace stemma::server {

struct PlanningOptions {
  v1::RunConfig config;  // file, flags over it, defaults; checked
  ModelConfig model;
  std::string trace;
  uint32_t requests = 8;  // the first ones of the trace, at most
  std::string device = "cpu";
  const PublishedDevice* published = nullptr;  // of that name; cpu: none
  uint64_t device_bytes = 0;                   // of each rank; 0: what the device has
};

// Flags as they are written.
struct PlanningFlags {
  std::string config_file, model, dtype, memory_budget, host_memory, device_memory;
  uint32_t threads = 0;
};

void AddPlanningFlags(CLI::App& app, PlanningFlags& flags, PlanningOptions& options);

// Reads run.yaml and the model's config.json. What is wrong is added to `problems`.
void ReadPlanningOptions(const PlanningFlags& flags, PlanningOptions& options, std::vector<std::string>& problems);

// Adds a problem where ranks have a device of their own: `name` is an option of ranks on cpu, and it is given.
void RefuseOnDevice(const std::string& name, const PlanningOptions& options, std::vector<std::string>& problems);

struct TraceRequests {
  std::vector<NamedRequest> requests;
  bool more = false;  // than were asked for
};

// Returns the shapes of the requests; of the requests themselves one is in memory at a time. Errors: InvalidArgument -
// names the trace's line and field.
absl::StatusOr<TraceRequests> ReadTrace(const PlanningOptions& options);

// Returns what each of so many ranks has. A device of its own has memory of its own; on cpu the ranks share this
// machine, as those of `stemma local` do.
WorkerMemory MemoryOf(const PlanningOptions& options, uint32_t ranks);

// Gives each of so many ranks on cpu its part of this machine's threads, where none are given.
void DivideThreads(uint32_t ranks, PlanningOptions& options);

// Returns the default rates of the device.
Rates RatesOf(const PlanningOptions& options, v1::OptimizerResidency residency);

// Prints {"problems": [...]}; answers the exit code.
int Refuse(const std::vector<std::string>& problems);

}  // namespace stemma::server
