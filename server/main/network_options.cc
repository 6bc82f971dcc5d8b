#include "server/main/network_options.h"

#include "CLI/CLI.hpp"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"

namespace stemma::server {
namespace {

constexpr const char *kDefaultInside = "nvlink4", *kDefaultBetween = "ib-ndr";
constexpr uint32_t kDefaultRanksPerHost = 8;

Network NetworkNamed(const std::string& name, const char* otherwise) {
  return *FindNetwork(name.empty() ? otherwise : name);
}

}  // namespace

void AddNetworkFlags(CLI::App& app, NetworkFlags& flags) {
  app.add_option("--inside", flags.inside, "the network between the ranks of a host")->check(OneOf(NetworkNames()), "");
  app.add_option("--between", flags.between, "the network between hosts")->check(OneOf(NetworkNames()), "");
  app.add_option("--ranks-per-host", flags.ranks_per_host, "ranks that share a host (default 8)")
      ->check(Whole(1, kRanksMax), "");
}

std::optional<HostNetworks> ReadNetworks(const NetworkFlags& flags, bool default_ones,
                                         std::vector<std::string>& problems) {
  if (flags.given() || default_ones) {
    return HostNetworks{.inside = NetworkNamed(flags.inside, kDefaultInside),
                        .between = NetworkNamed(flags.between, kDefaultBetween),
                        .ranks_per_host = flags.ranks_per_host > 0 ? flags.ranks_per_host : kDefaultRanksPerHost};
  }
  if (flags.ranks_per_host > 0) {
    problems.emplace_back("--ranks-per-host: says nothing without networks: give --inside, --between or both");
  }
  return std::nullopt;
}

}  // namespace stemma::server
