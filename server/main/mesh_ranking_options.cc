#include "server/main/mesh_ranking_options.h"

#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/command_line_options.h"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"
#include "common/base/parse_options.h"
#include "server/main/network_options.h"
#include "server/main/rank_meshes.h"

namespace stemma::server {

bool ReadMeshRankingOptions(int argc, char** argv, MeshRankingOptions& options, std::vector<std::string>& problems,
                            int& exit_code) {
  CLI::App app("Ranks the meshes of so many ranks by a trace, for `stemma mesh`: prints JSON, serves nothing.",
               absl::StrCat("stemma-server ", kRankMeshes));
  SetHelpStyle(app);
  PlanningFlags flags;
  AddPlanningFlags(app, flags, options);
  NetworkFlags networks;
  AddNetworkFlags(app, networks);
  app.add_option("--ranks", options.ranks, "how many ranks the meshes have")->check(Whole(1, kRanksMax), "");
  AddNumber(&app, "--link-bytes-per-s", options.link_bytes_per_s, "bytes a second that a rank sends to others",
            kLinkBytesPerS);
  AddNumber(&app, "--link-latency-us", options.link_latency_us, "microseconds of a message beside its bytes",
            kLinkLatencyUs);
  if (const std::optional<int> parsed = ParseOptions(app, argc, argv)) {
    exit_code = *parsed;
    return false;
  }
  ReadPlanningOptions(flags, options, problems);
  const bool has_link = options.link_bytes_per_s > 0 || options.link_latency_us >= 0;
  if (has_link && networks.given()) {
    problems.emplace_back(
        "--link-bytes-per-s, --link-latency-us: are of every axis, and --inside and --between of hosts: give either");
  }
  options.networks = ReadNetworks(networks, options.published != nullptr && !has_link, problems);
  return true;
}

}  // namespace stemma::server
