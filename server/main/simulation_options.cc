#include "server/main/simulation_options.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/command_line_options.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/json_fields.h"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"
#include "common/base/parse_options.h"
#include "common/base/status_macros.h"
#include "server/main/network_options.h"
#include "server/main/simulate.h"

namespace stemma::server {
namespace {

constexpr uint64_t kRatesFileBytesMax = 64 << 20;  // a plan of many groups
constexpr uint64_t kGroupsPerCopyMax = 1 << 16;
constexpr double kRateMax = 1e3;  // seconds for one unit

struct SimulationFlags {
  std::vector<std::string> meshes;
  std::string rates_file;
  NetworkFlags networks;
};

void AddSimulationFlags(CLI::App& app, SimulationFlags& flags, SimulationOptions& options) {
  app.add_option("--mesh", flags.meshes, "axis=size, several separated by commas; may be given several times")
      ->required();
  app.add_option("--rates", flags.rates_file, "rates of a machine that was measured: what `stemma plan -o json` says");
  AddNetworkFlags(app, flags.networks);
  app.add_option("--groups-per-copy", options.groups_per_copy,
                 "give each copy of the model so many groups in one step, the trace's ones again and again")
      ->check(Whole(1, kGroupsPerCopyMax), "");
  AddNumber(&app, "--cores", options.cores, "cores that all ranks share (default: each has its own)", kSharedCores);
}

void ReadMeshes(const SimulationFlags& flags, SimulationOptions& options, std::vector<std::string>& problems) {
  for (const std::string& text : flags.meshes) {
    absl::StatusOr<v1::Mesh> mesh = ParseMesh(text);
    if (!mesh.ok()) {
      problems.push_back(absl::StrCat("--mesh: ", mesh.status().message()));
    } else if (NumRanks(*mesh) > kRanksMax) {
      problems.push_back(absl::StrCat("--mesh: ", text, " has ", NumRanks(*mesh), " ranks, at most ", kRanksMax));
    } else {
      options.meshes.push_back(*std::move(mesh));
    }
  }
}

// Reads rates as `stemma plan -o json` and a file of its `rates` alone have them: seconds of each unit of work by its
// name. Errors: InvalidArgument - not JSON; a rate that is missing, or no number above 0 (0 for one that costs
// nothing).
absl::StatusOr<Rates> ParseRates(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text));
  if (!json.is_object()) return absl::InvalidArgumentError("not an object");
  const nlohmann::json& object = json.contains("rates") && json["rates"].is_object() ? json["rates"] : json;
  const JsonFields fields(object, "rates.");
  Rates rates;
  for (int i = 0; i < kNumRates; ++i) {
    const char* const name = kRateNames[static_cast<size_t>(i)];
    ASSIGN_OR_RETURN(const double seconds, fields.Number(name));
    if (!(seconds >= 0 && seconds <= kRateMax)) {
      return fields.Error(name, absl::StrCat("is ", seconds, ", no seconds of a unit of work: give 0 to ", kRateMax));
    }
    rates[static_cast<Rate>(i)] = seconds;
  }
  ASSIGN_OR_RETURN(rates.source, fields.StringOr("from", "given"));
  if (rates[kLinear] <= 0) return fields.Error("linear", "is 0: matrix products take time");
  return rates;
}

void ReadRates(const std::string& path, SimulationOptions& options, std::vector<std::string>& problems) {
  if (path.empty()) return;
  const absl::StatusOr<std::string> text = ReadFile(path, kRatesFileBytesMax);
  const absl::StatusOr<Rates> rates = text.ok() ? ParseRates(*text) : text.status();
  if (rates.ok()) {
    options.rates = *rates;
  } else {
    problems.push_back(
        absl::StrCat("--rates: ", path, ": ", rates.status().message(), "; give what `stemma plan -o json` prints"));
  }
}

}  // namespace

bool ReadSimulationOptions(int argc, char** argv, SimulationOptions& options, std::vector<std::string>& problems,
                           int& exit_code) {
  CLI::App app("Runs a trace on meshes in simulated time, for `stemma simulate`: prints JSON, serves nothing.",
               absl::StrCat("stemma-server ", kSimulate));
  SetHelpStyle(app);
  PlanningFlags planning;
  AddPlanningFlags(app, planning, options);
  SimulationFlags flags;
  AddSimulationFlags(app, flags, options);
  if (const std::optional<int> parsed = ParseOptions(app, argc, argv)) {
    exit_code = *parsed;
    return false;
  }
  ReadPlanningOptions(planning, options, problems);
  if (options.cores > 0) RefuseOnDevice("--cores", options, problems);
  ReadMeshes(flags, options, problems);
  ReadRates(flags.rates_file, options, problems);
  // On cpu, and with measured rates, none unless they are given.
  const bool default_ones = options.published != nullptr && !options.rates;
  options.networks = ReadNetworks(flags.networks, default_ones, problems);
  return true;
}

}  // namespace stemma::server
