#include "server/main/rank_meshes.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/admission/request_builder.h"
#include "common/admission/run_numbers.h"
#include "common/base/logging.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/base/system_memory.h"
#include "common/trace/trace.h"
#include "nlohmann/json.hpp"
#include "server/main/mesh_ranking_options.h"
#include "server/main/server_options.h"
#include "server/planner/mesh_ranking.h"
#include "server/protocol/host_shares.h"
#include "server/protocol/request_plan.h"

namespace stemma::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kConfiguration = 2;
constexpr double kMicrosecondsOfSecond = 1e6;

// Checks a line as a server would check the request.
absl::StatusOr<std::shared_ptr<const TrainingRequest>> Build(TraceRequest request, const MeshRankingOptions& options) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, options.config.limits(), options.model,
                         NumbersOfRun(RunDtypeOf(options.config.dtype())));
  v1::GroupPart part;
  *part.mutable_update() = std::move(request.header);
  RETURN_IF_ERROR(builder.Add(part));
  uint64_t num_rollouts = 0;
  for (v1::PromptGroup& group : request.groups) {
    num_rollouts += static_cast<uint64_t>(group.rollouts_size());
    *part.mutable_group() = std::move(group);
    RETURN_IF_ERROR(builder.Add(part));
  }
  part.mutable_end()->set_num_groups(request.groups.size());
  part.mutable_end()->set_num_rollouts(num_rollouts);
  RETURN_IF_ERROR(builder.Add(part));
  return builder.Finish();
}

struct TraceRequests {
  std::vector<NamedRequest> requests;
  bool more = false;  // than were asked for
};

// Returns the shapes of the requests; of the requests themselves one is in memory at a time.
absl::StatusOr<TraceRequests> ReadTrace(const MeshRankingOptions& options) {
  absl::StatusOr<TraceReader> reader = TraceReader::Open(options.trace);
  if (!reader.ok()) return absl::InvalidArgumentError(absl::StrCat("--trace: ", reader.status().message()));
  TraceRequests read;
  while (true) {
    ASSIGN_OR_RETURN(std::optional<TraceLine> line, reader->Next());
    read.more = line && read.requests.size() == options.requests;
    if (!line || read.more) break;
    const std::string name = absl::StrCat("line ", line->line);
    const auto request = Build(std::move(line->request), options);
    if (!request.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.trace, ": ", name, ": ",
                       absl::StrReplaceAll(std::string(request.status().message()), {{"update.", "header."}}),
                       "; `stemma trace check ", options.trace, "` lists every problem"));
    }
    read.requests.push_back({absl::StrCat("the request on ", name), PlannerRequestOf(**request, options.config)});
  }
  if (read.requests.empty()) return absl::InvalidArgumentError(absl::StrCat(options.trace, ": holds no request"));
  return read;
}

// Returns what each rank has. A device of its own has memory of its own; on cpu the ranks share this machine, as those
// of `stemma local` do.
WorkerMemory MemoryOf(const MeshRankingOptions& options) {
  const auto given = static_cast<int64_t>(options.device_bytes);
  if (options.published == nullptr) {
    if (given > 0) return {.device_free_bytes = given, .host_free_bytes = 0, .device_bytes = given};
    return ShareOf({AvailableMemoryBytes(), 0, MachineMemoryBytes()}, options.ranks);
  }
  WorkerMemory memory = options.published->memory;
  if (given > 0) memory.device_free_bytes = memory.device_bytes = given;
  if (options.config.host_memory_bytes() > 0) {
    memory.host_free_bytes = static_cast<int64_t>(options.config.host_memory_bytes());
  }
  return memory;
}

Rates RatesOf(const MeshRankingOptions& options, v1::OptimizerResidency residency) {
  const RunDtype dtype = RunDtypeOf(options.config.dtype());
  Rates rates = options.published == nullptr ? DefaultRates(dtype, options.config.threads(), options.device, residency)
                                             : RatesOf(*options.published, dtype, residency);
  for (const LinkRates& link : kLinkRates) {
    if (options.link_bytes_per_s > 0) rates[link.byte] = 1 / options.link_bytes_per_s;
    if (options.link_latency_us >= 0) rates[link.message] = options.link_latency_us / kMicrosecondsOfSecond;
  }
  // Whatever the mesh, each parameter's states are one rank's, and all ranks update theirs at the same time.
  rates[kParameter] /= options.ranks;
  return rates;
}

MeshQuestion QuestionOf(const MeshRankingOptions& options, std::vector<NamedRequest> requests) {
  return {.config = options.model,
          .run = options.config,
          .requests = std::move(requests),
          .ranks = options.ranks,
          .memory = MemoryOf(options),
          .rates = [&options](v1::OptimizerResidency residency) { return RatesOf(options, residency); }};
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
  json["host_bytes"] = answer.host_bytes;
  json["imbalance"] = answer.imbalance > 0 ? Json(answer.imbalance) : Json();
  return json;
}

Json AnswersJson(const MeshRankingOptions& options, const TraceRequests& read, const MeshQuestion& question,
                 const std::vector<MeshAnswer>& answers) {
  const Rates rates = RatesOf(options, v1::DEVICE);
  Json json;
  json["ranks"] = options.ranks;
  json["parameters"] = options.model.num_parameters();
  json["dtype"] = options.config.dtype();
  json["device"] = options.device;
  json["device_bytes"] = question.memory.device_free_bytes;
  json["threads"] = options.published == nullptr ? Json(options.config.threads()) : Json();
  json["link_bytes_per_s"] = options.link_bytes_per_s > 0 ? options.link_bytes_per_s : std::round(1 / rates[kDataByte]);
  json["link_latency_us"] = rates[kDataCollective] * kMicrosecondsOfSecond;
  json["requests"] = question.requests.size();
  json["more_requests"] = read.more;
  json["steps"] = answers.front().steps;
  json["tokens"] = answers.front().tokens;
  const int64_t device_bytes = question.memory.device_free_bytes;
  for (const MeshAnswer& answer : answers) json["meshes"].push_back(AnswerJson(answer, device_bytes));
  return json;
}

int Refuse(const std::vector<std::string>& problems) {
  std::cout << Json{{"problems", problems}}.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  return kConfiguration;
}

}  // namespace

int RankMeshesMain(int argc, char** argv) {
  MeshRankingOptions options;
  std::vector<std::string> problems;
  int exit_code = 0;
  if (!ReadMeshRankingOptions(argc, argv, options, problems, exit_code)) return exit_code;
  StartLogging(kServerProgram, {});
  if (!problems.empty()) return Refuse(problems);
  if (options.published == nullptr && options.config.threads() == 0) {
    options.config.set_threads(std::max(std::thread::hardware_concurrency() / options.ranks, 1u));
  }
  absl::StatusOr<TraceRequests> read = ReadTrace(options);
  if (!read.ok()) return Refuse({std::string(read.status().message())});
  const MeshQuestion question = QuestionOf(options, std::move(read->requests));
  const std::vector<MeshAnswer> answers = RankMeshes(question);
  std::cout << AnswersJson(options, *read, question, answers).dump(-1, ' ', false, Json::error_handler_t::replace)
            << "\n";
  return 0;
}

}  // namespace stemma::server
