// The networks between the ranks of a mesh, by what is published of them: one between the devices of a host, one
// between hosts. Ranks are numbered so that neighbours of an inner axis share a host where they can
// (common/base/mesh.h), and so each axis runs over one or the other. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/planner/cost_model.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

// In one direction, of one rank. A message to a neighbour takes start_s + hop_s beside its bytes; a collective goes
// through its ranks in a ring, and takes start_s and a hop to each of the others.
struct Network {
  std::string_view name;
  double bytes_per_s = 0;
  double start_s = 0, hop_s = 0;
};

// Returns nothing for a name that is not known.
const Network* FindNetwork(std::string_view name);

std::vector<std::string> NetworkNames();

struct HostNetworks {
  Network inside, between;
  uint32_t ranks_per_host = 1;
};

// The network of each axis by its name: that between hosts, unless each group of the axis is on one host. Empty: the
// axis has one rank.
struct AxisNetworks {
  std::string_view tp, cp, pp, dp;
};

// Puts what each axis of the mesh costs into `rates`; answers over which network it runs. A ring that goes over several
// hosts leaves each of them once: by as many links as the host has ranks of the group, which share its bytes.
AxisNetworks SetNetworks(const v1::Mesh& mesh, const HostNetworks& networks, Rates& rates);

}  // namespace stemma::server
