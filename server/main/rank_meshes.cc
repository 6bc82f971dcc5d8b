#include "server/main/rank_meshes.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/logging.h"
#include "common/base/mesh.h"
#include "common/base/parallel_for.h"
#include "nlohmann/json.hpp"
#include "server/main/mesh_ranking_options.h"
#include "server/main/server_options.h"
#include "server/planner/mesh_ranking.h"

namespace stemma::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicrosecondsOfSecond = 1e6;
// Each thread has a plan in memory, of 262,144 rollouts about 200 MB (planner_bench).
constexpr size_t kThreadsMax = 32;

Rates RatesOfRanking(const MeshRankingOptions& options, const v1::Mesh& mesh, v1::OptimizerResidency residency) {
  Rates rates = RatesOf(options, residency);
  if (options.networks) SetNetworks(mesh, *options.networks, rates);
  for (const LinkRates& link : kLinkRates) {
    if (options.link_bytes_per_s > 0) rates[link.byte] = 1 / options.link_bytes_per_s;
    if (options.link_latency_us >= 0) rates[link.message] = options.link_latency_us / kMicrosecondsOfSecond;
  }
  // Whatever the mesh, each parameter's states are one rank's, and all ranks update theirs at the same time.
  rates[kParameter] /= options.ranks;
  return rates;
}

MeshQuestion RankingQuestion(const MeshRankingOptions& options, std::vector<NamedRequest> requests) {
  return {.config = options.model,
          .run = options.config,
          .requests = std::move(requests),
          .ranks = options.ranks,
          .memory = MemoryOf(options, options.ranks),
          .rates = [&options](const v1::Mesh& mesh, v1::OptimizerResidency residency) {
            return RatesOfRanking(options, mesh, residency);
          }};
}

Json AnswerJson(const MeshAnswer& answer, int64_t device_bytes) {
  Json json;
  json["mesh"] = MeshText(answer.mesh);
  json["dp"] = DpSize(answer.mesh);
  json["pp"] = PpSize(answer.mesh);
  json["cp"] = CpSize(answer.mesh);
  json["tp"] = TpSize(answer.mesh);
  json["possible"] = answer.possible();
  if (!answer.possible()) {
    json["reason"] = answer.problem;
    return json;
  }
  json["seconds"] = answer.seconds();
  json["exchange_s"] = answer.exchange_s;
  json["tokens_per_s"] = answer.tokens_per_s();
  json["bytes"] = answer.bytes();
  json["state_bytes"] = answer.state_bytes;
  json["step_bytes"] = answer.step_bytes;
  json["budget_bytes"] = answer.budget_bytes;
  json["device_share"] =
      device_bytes > 0 ? Json(static_cast<double>(answer.bytes()) / static_cast<double>(device_bytes)) : Json();
  json["optimizer"] = answer.host_bytes > 0 ? "host" : "device";
  json["shard_parameters"] = answer.shards_parameters;
  json["host_bytes"] = answer.host_bytes;
  json["imbalance"] = answer.imbalance > 0 ? Json(answer.imbalance) : Json();
  return json;
}

// Adds the link that all axes have, or the networks.
void AddLinks(const MeshRankingOptions& options, Json& json) {
  if (options.networks) {
    json["link_bytes_per_s"] = json["link_latency_us"] = Json();
    json["networks"] = {{"inside", std::string(options.networks->inside.name)},
                        {"between", std::string(options.networks->between.name)},
                        {"ranks_per_host", options.networks->ranks_per_host}};
    return;
  }
  const Rates rates = RatesOfRanking(options, v1::Mesh(), v1::DEVICE);
  json["link_bytes_per_s"] = options.link_bytes_per_s > 0 ? options.link_bytes_per_s : std::round(1 / rates[kDataByte]);
  json["link_latency_us"] = rates[kDataCollective] * kMicrosecondsOfSecond;
  json["networks"] = Json();
}

Json AnswersJson(const MeshRankingOptions& options, const TraceRequests& read, const MeshQuestion& question,
                 const std::vector<MeshAnswer>& answers) {
  Json json;
  json["ranks"] = options.ranks;
  json["parameters"] = options.model.num_parameters();
  json["dtype"] = options.config.dtype();
  json["device"] = options.device;
  json["device_bytes"] = question.memory.device_free_bytes;
  json["threads"] = options.published == nullptr ? Json(options.config.threads()) : Json();
  AddLinks(options, json);
  json["requests"] = question.requests.size();
  json["more_requests"] = read.more;
  json["steps"] = answers.front().steps;
  json["tokens"] = answers.front().tokens;
  const int64_t device_bytes = question.memory.device_free_bytes;
  for (const MeshAnswer& answer : answers) json["meshes"].push_back(AnswerJson(answer, device_bytes));
  return json;
}

}  // namespace

int RankMeshesMain(int argc, char** argv) {
  MeshRankingOptions options;
  std::vector<std::string> problems;
  int exit_code = 0;
  if (!ReadMeshRankingOptions(argc, argv, options, problems, exit_code)) return exit_code;
  StartLogging(kServerProgram, {});
  if (!problems.empty()) return Refuse(problems);
  DivideThreads(options.ranks, options);
  absl::StatusOr<TraceRequests> read = ReadTrace(options);
  if (!read.ok()) return Refuse({std::string(read.status().message())});
  const MeshQuestion question = RankingQuestion(options, std::move(read->requests));
  const std::vector<MeshAnswer> answers = RankMeshes(question, std::min(MachineThreads(), kThreadsMax));
  std::cout << AnswersJson(options, *read, question, answers).dump(-1, ' ', false, Json::error_handler_t::replace)
            << "\n";
  return 0;
}

}  // namespace stemma::server
