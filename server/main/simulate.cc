#include "server/main/simulate.h"

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/cost/state_bytes.h"
#include "nlohmann/json.hpp"
#include "server/main/planning_options.h"
#include "server/main/server_options.h"
#include "server/main/simulation_options.h"
#include "server/simulation/simulation.h"

namespace stemma::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, kNumAxes> kAxisNames = {"tp", "cp", "pp", "dp"};

// More take minutes and gigabytes to plan.
constexpr uint64_t kRolloutsMax = uint64_t{1} << 21;

// Gives a request so many groups in one step: its own ones, as often as it takes. Errors: ResourceExhausted - they have
// more rollouts than can be planned.
absl::StatusOr<PlannerRequest> WithGroups(const PlannerRequest& request, uint64_t count) {
  uint64_t rollouts = 0;
  for (const PlannerGroup& group : request.groups) rollouts += group.rollouts.size();
  if (static_cast<double>(rollouts) * static_cast<double>(count) / static_cast<double>(request.groups.size()) >
      static_cast<double>(kRolloutsMax)) {
    return absl::ResourceExhaustedError(absl::StrCat(count, " groups of this trace have more than ", kRolloutsMax,
                                                     " rollouts: give fewer --groups-per-copy"));
  }
  PlannerRequest scaled = request;
  scaled.mini_batch_groups = 0;
  scaled.groups.clear();
  for (uint64_t i = 0; i < count; ++i) {
    PlannerGroup group = request.groups[i % request.groups.size()];
    group.uid = absl::StrCat(group.uid, "/", i / request.groups.size());
    scaled.groups.push_back(std::move(group));
  }
  return scaled;
}

Rates RatesOfSimulation(const SimulationOptions& options, const v1::Mesh& mesh, v1::OptimizerResidency residency) {
  Rates rates = RatesOf(options, residency);
  if (options.rates) rates.seconds = options.rates->seconds;
  if (options.networks) SetNetworks(mesh, *options.networks, rates);
  return rates;
}

absl::StatusOr<SimulationQuestion> QuestionOnMesh(const SimulationOptions& options,
                                                  const std::vector<NamedRequest>& requests, const v1::Mesh& mesh) {
  const uint32_t ranks = NumRanks(mesh);
  SimulationOptions given = options;
  DivideThreads(ranks, given);
  SimulationQuestion question = {.mesh_question = {.config = options.model,
                                                   .run = given.config,
                                                   .requests = requests,
                                                   .ranks = ranks,
                                                   .memory = MemoryOf(options, ranks),
                                                   .rates = {}},
                                 .mesh = mesh,
                                 .cores = {}};
  question.mesh_question.rates = [given](const v1::Mesh& of, v1::OptimizerResidency residency) {
    return RatesOfSimulation(given, of, residency);
  };
  if (options.groups_per_copy > 0) {
    for (NamedRequest& named : question.mesh_question.requests) {
      ASSIGN_OR_RETURN(named.request, WithGroups(named.request, options.groups_per_copy * DpSize(mesh)));
    }
  }
  if (options.cores > 0) {
    question.cores = {.cores = options.cores,
                      .threads_per_rank = static_cast<double>(given.config.threads()) * TpSize(mesh)};
  }
  return question;
}

// By the axes of the mesh that have several ranks.
template <typename Value>
Json ByAxis(const v1::Mesh& mesh, const std::array<Value, kNumAxes>& values) {
  const std::array<uint32_t, kNumAxes> ranks = {TpSize(mesh), CpSize(mesh), PpSize(mesh), DataRanks(mesh)};
  Json json = Json::object();
  for (size_t axis = 0; axis < kNumAxes; ++axis) {
    if (ranks[axis] > 1) json[kAxisNames[axis]] = values[axis];
  }
  return json;
}

Json SecondsJson(const v1::Mesh& mesh, const StepSeconds& seconds) {
  Json json;
  json["compute"] = seconds.compute_s;
  json["wire"] = ByAxis(mesh, seconds.wire_s);
  json["wait"] = ByAxis(mesh, seconds.wait_s);
  json["imbalance"] = seconds.imbalance_s;
  json["reduction"] = seconds.reduction_s;
  json["agreement"] = seconds.agreement_s;
  json["apply"] = seconds.apply_s;
  json["gathering"] = seconds.gathering_s;
  return json;
}

Json NetworksJson(const SimulationOptions& options, const v1::Mesh& mesh) {
  if (!options.networks) return {};
  Rates rates;
  const AxisNetworks networks = SetNetworks(mesh, *options.networks, rates);
  return ByAxis(mesh, std::array<std::string, kNumAxes>{std::string(networks.tp), std::string(networks.cp),
                                                        std::string(networks.pp), std::string(networks.dp)});
}

Json MeshJson(const SimulationOptions& options, const std::vector<NamedRequest>& requests, const v1::Mesh& mesh) {
  Json json;
  json["mesh"] = MeshText(mesh);
  json["ranks"] = NumRanks(mesh);
  const absl::StatusOr<SimulationQuestion> question = QuestionOnMesh(options, requests, mesh);
  const absl::StatusOr<SimulationAnswer> answer = question.ok() ? Simulate(*question) : question.status();
  json["possible"] = answer.ok();
  if (!answer.ok()) {
    json["reason"] = std::string(answer.status().message());
    return json;
  }
  const StepSeconds& seconds = answer->seconds;
  json["shard_parameters"] = ShardsParameters(answer->run);
  json["steps"] = answer->steps;
  json["tokens"] = answer->tokens;
  json["seconds"] = seconds.total_s;
  json["pass_s"] = seconds.pass_s;
  json["phases_s"] = {{"A", seconds.phase_s[0]}, {"B", seconds.phase_s[1]}, {"C", seconds.phase_s[2]}};
  json["tokens_per_s"] = answer->tokens_per_s();
  json["flops_per_s_of_rank"] = answer->flops / seconds.total_s / NumRanks(mesh);
  json["parts_s"] = SecondsJson(mesh, seconds);
  json["hidden_s"] = ByAxis(mesh, seconds.hidden_s);
  json["sent_bytes"] = ByAxis(mesh, answer->sent_bytes);
  json["networks"] = NetworksJson(options, mesh);
  json["state_bytes"] = answer->state_bytes;
  json["step_bytes"] = answer->step_bytes;
  json["bytes"] = answer->state_bytes + answer->step_bytes;
  json["device_bytes"] = question->mesh_question.memory.device_free_bytes;
  json["host_bytes"] = answer->host_bytes;
  json["optimizer"] = answer->host_bytes > 0 ? "host" : "device";
  return json;
}

}  // namespace

int SimulateMain(int argc, char** argv) {
  SimulationOptions options;
  std::vector<std::string> problems;
  int exit_code = 0;
  if (!ReadSimulationOptions(argc, argv, options, problems, exit_code)) return exit_code;
  StartLogging(kServerProgram, {});
  if (!problems.empty()) return Refuse(problems);
  const absl::StatusOr<TraceRequests> read = ReadTrace(options);
  if (!read.ok()) return Refuse({std::string(read.status().message())});
  Json json;
  json["parameters"] = options.model.num_parameters();
  json["dtype"] = options.config.dtype();
  json["device"] = options.device;
  json["rates"] = options.rates ? options.rates->source : "default";
  json["requests"] = read->requests.size();
  json["more_requests"] = read->more;
  for (const v1::Mesh& mesh : options.meshes) json["meshes"].push_back(MeshJson(options, read->requests, mesh));
  std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  return 0;
}

}  // namespace stemma::server
