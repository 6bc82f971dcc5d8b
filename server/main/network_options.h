// The options of planning commands for the networks between ranks: --inside, --between, --ranks-per-host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/simulation/host_network.h"

namespace CLI {
class App;
}  // namespace CLI

namespace stemma::server {

struct NetworkFlags {
  std::string inside, between;
  uint32_t ranks_per_host = 0;  // 0: not given

  bool given() const { return !inside.empty() || !between.empty(); }
};

void AddNetworkFlags(CLI::App& app, NetworkFlags& flags);

// Returns the networks that are given; without, those of hosts with GPUs where these are the `default_ones`, and else
// none. What is wrong is added to `problems`.
std::optional<HostNetworks> ReadNetworks(const NetworkFlags& flags, bool default_ones,
                                         std::vector<std::string>& problems);

}  // namespace stemma::server
