// The command line of `stemma-server rank-meshes`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/main/planning_options.h"
#include "server/simulation/host_network.h"

namespace stemma::server {

struct MeshRankingOptions : PlanningOptions {
  uint32_t ranks = 1;
  double link_bytes_per_s = 0;           // between ranks; 0: the default rates
  double link_latency_us = -1;           // below 0: the default rates
  std::optional<HostNetworks> networks;  // none: all axes have the same link
};

// Reads the command line and what it names. What is wrong is added to `problems`. `exit_code` is set, and false
// returned, when the process is to end: after --help, or where the line cannot be read.
bool ReadMeshRankingOptions(int argc, char** argv, MeshRankingOptions& options, std::vector<std::string>& problems,
                            int& exit_code);

}  // namespace stemma::server
