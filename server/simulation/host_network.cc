#include "server/simulation/host_network.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "common/base/mesh.h"

namespace stemma::server {
namespace {

// Bytes: NVLink 4 as NCCL's topology counts it, 18 links of 20.6 GB/s, of 450 GB/s in NVIDIA's data sheet of the H100;
// PCI Express 5.0 with 16 lanes, and InfiniBand NDR and HDR and 100 Gb/s Ethernet, by their line rates: one port for
// each device. Starts and hops: NCCL's tuning model of a ring in its Simple protocol, 8.4 us to start, and for each hop
// 3.4 us over NVLink, 5.7 us over PCI Express and 14 us over a network.
constexpr double kStartS = 8.4e-6, kNvlinkHopS = 3.4e-6, kPcieHopS = 5.7e-6, kNetworkHopS = 14e-6;
constexpr std::array<Network, 5> kNetworks = {{{"nvlink4", 370.8e9, kStartS, kNvlinkHopS},
                                               {"pcie5", 64e9, kStartS, kPcieHopS},
                                               {"ib-ndr", 50e9, kStartS, kNetworkHopS},
                                               {"ib-hdr", 25e9, kStartS, kNetworkHopS},
                                               {"ethernet-100g", 12.5e9, kStartS, kNetworkHopS}}};

// The groups of an axis: how many ranks one has, how many of those the first host has, and whether every group is on
// one host.
struct AxisGroups {
  uint32_t ranks = 1, on_first_host = 1;
  bool on_one_host = true;
};

// `members`: the ranks of the first group. Groups begin at multiples of `span`, and lie within it.
AxisGroups GroupsOf(const std::vector<uint32_t>& members, uint32_t span, uint32_t all, uint32_t per_host) {
  const auto near = std::count_if(members.begin(), members.end(), [&](uint32_t rank) { return rank < per_host; });
  return {.ranks = static_cast<uint32_t>(members.size()),
          .on_first_host = static_cast<uint32_t>(near),
          .on_one_host = all <= per_host || per_host % span == 0};
}

// Returns the network over which a ring of the group goes.
Network RingOf(const AxisGroups& groups, const HostNetworks& networks) {
  if (groups.on_one_host) return networks.inside;
  Network ring = networks.between;
  ring.bytes_per_s = std::min(groups.on_first_host * networks.between.bytes_per_s,
                              std::max(networks.inside.bytes_per_s, networks.between.bytes_per_s));
  return ring;
}

double RingSeconds(const AxisGroups& groups, const HostNetworks& networks) {
  if (groups.on_one_host) return networks.inside.start_s + (groups.ranks - 1) * networks.inside.hop_s;
  const uint32_t hosts = (groups.ranks + groups.on_first_host - 1) / groups.on_first_host;
  return networks.between.start_s + (hosts - 1) * networks.between.hop_s +
         (groups.ranks - hosts) * networks.inside.hop_s;
}

// Returns the ranks of a mesh's first group: `inner` of them in steps of `step`, and as many in each of `outer` blocks
// of `stride` ranks.
std::vector<uint32_t> Members(uint32_t outer, uint32_t stride, uint32_t inner, uint32_t step) {
  std::vector<uint32_t> members;
  for (uint32_t i = 0; i < outer; ++i) {
    for (uint32_t j = 0; j < inner; ++j) members.push_back(i * stride + j * step);
  }
  return members;
}

}  // namespace

const Network* FindNetwork(std::string_view name) {
  const auto* const found =
      std::find_if(kNetworks.begin(), kNetworks.end(), [&](const Network& network) { return network.name == name; });
  return found == kNetworks.end() ? nullptr : found;
}

std::vector<std::string> NetworkNames() {
  std::vector<std::string> names;
  std::transform(kNetworks.begin(), kNetworks.end(), std::back_inserter(names),
                 [](const Network& network) { return std::string(network.name); });
  return names;
}

AxisNetworks SetNetworks(const v1::Mesh& mesh, const HostNetworks& networks, Rates& rates) {
  const uint32_t tp = TpSize(mesh), cp = CpSize(mesh), pp = PpSize(mesh), dp = DpSize(mesh), all = NumRanks(mesh);
  const auto set_ring = [&](const std::vector<uint32_t>& members, uint32_t span, const LinkRates& link) {
    const AxisGroups groups = GroupsOf(members, span, all, networks.ranks_per_host);
    const Network ring = RingOf(groups, networks);
    rates[link.byte] = 1 / ring.bytes_per_s;
    rates[link.message] = RingSeconds(groups, networks);
    return groups.ranks > 1 ? ring.name : std::string_view();
  };
  AxisNetworks names;
  names.tp = set_ring(Members(1, 0, tp, 1), tp, kTensorLink);
  names.cp = set_ring(Members(1, 0, cp, tp), cp * tp, kContextLink);
  names.dp = set_ring(Members(dp, pp * cp * tp, cp, tp), all, kDataLink);
  // Some of the messages from rank to rank cross from host to host.
  const auto set_messages = [&](const std::vector<uint32_t>& members, uint32_t span, const LinkRates& link) {
    const AxisGroups groups = GroupsOf(members, span, all, networks.ranks_per_host);
    const Network& network = groups.on_one_host ? networks.inside : networks.between;
    rates[link.byte] = 1 / network.bytes_per_s;
    rates[link.message] = network.start_s + network.hop_s;
    return groups.ranks > 1 ? network.name : std::string_view();
  };
  names.pp = set_messages(Members(1, 0, pp, cp * tp), pp * cp * tp, kStageLink);
  set_messages(Members(1, 0, dp, pp * cp * tp), all, kPartLink);
  return names;
}

}  // namespace stemma::server
