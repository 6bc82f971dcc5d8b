// The command line of `stemma-server simulate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/main/planning_options.h"
#include "server/simulation/host_network.h"

namespace stemma::server {

struct SimulationOptions : PlanningOptions {
  std::vector<v1::Mesh> meshes;          // at least one
  std::optional<HostNetworks> networks;  // none: the rates have them
  std::optional<Rates> rates;            // of a file; none: the device's default ones
  uint64_t groups_per_copy = 0;          // each request has so many groups for each copy, in one step; 0: its own
  double cores = 0;                      // that all ranks share; 0: each has its own
};

// Reads the command line and what it names. What is wrong is added to `problems`. `exit_code` is set, and false
// returned, when the process is to end: after --help, or where the line cannot be read.
bool ReadSimulationOptions(int argc, char** argv, SimulationOptions& options, std::vector<std::string>& problems,
                           int& exit_code);

}  // namespace stemma::server
