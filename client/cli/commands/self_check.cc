#include "client/cli/commands/self_check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/calls/submit.h"
#include "client/cli/local/child_process.h"
#include "client/cli/local/scratch_folder.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/request_records.h"
#include "client/cli/trace/synthetic_trace.h"
#include "common/base/clock.h"
#include "common/base/mesh.h"
#include "common/base/mesh_links.h"
#include "common/base/status_macros.h"
#include "common/model/mesh_rules.h"
#include "common/model/model_init.h"

namespace stemma::cli {
namespace {

constexpr absl::Duration kReadyTimeout = absl::Seconds(90), kReadyTimeoutOfRank = absl::Seconds(10);
constexpr double kStepTimeoutS = 90;
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr double kAgreement = 1e-4;  // fp32 sums in another order differ by about 1e-6
constexpr uint32_t kRanksOfMachineMax = 16;
constexpr int64_t kVocabulary = 64;

// Returns a model that most meshes can hold; where ranks have experts of their own, two for each set of them.
ModelConfig TinyModel(const v1::Mesh& mesh) {
  ModelConfig config;
  if (EpSize(mesh) > 1) config.experts = Experts{.count = 2 * int64_t{EpSize(mesh)}};
  config.SetFamily(*FindFamily(config.experts ? "qwen3_moe" : "qwen3"));
  config.vocab_size = kVocabulary;
  config.hidden_size = 32;
  config.num_layers = 4;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_size = 8;
  config.ffn_size = 64;
  config.max_positions = 256;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 10000;
  return config;
}

absl::StatusOr<SyntheticTraceOptions> TinyRequest() {
  SyntheticTraceOptions options;
  options.seed = 1;
  options.groups = 2;
  options.vocab_size = kVocabulary;
  ASSIGN_OR_RETURN(options.rollouts, LengthDistribution::Parse("fixed:4"));
  ASSIGN_OR_RETURN(options.prompt_tokens, LengthDistribution::Parse("fixed:24"));
  ASSIGN_OR_RETURN(options.response_tokens, LengthDistribution::Parse("uniform:1:8"));
  return options;
}

// The directory and the process of one self check; gone with it.
class Sandbox {
 public:
  ~Sandbox() {
    if (pid_ > 0) Stop().IgnoreError();  // what failed before is what counts
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }

  absl::StatusOr<std::string> Start(const v1::Mesh& mesh);
  absl::Status Stop();

 private:
  absl::StatusOr<std::string> WaitForAddress(absl::Duration timeout);

  std::string directory_;
  UniqueFd lock_;  // of the directory
  pid_t pid_ = -1;
};

absl::StatusOr<std::string> Sandbox::Start(const v1::Mesh& mesh) {
  ASSIGN_OR_RETURN(directory_, MakeScratchFolder(TemporaryRoot(), absl::StrCat(kScratchPrefix, "doctor-")));
  lock_ = LockScratchFolder(directory_);
  RETURN_IF_ERROR(WriteRandomModel(TinyModel(mesh), {.seed = 1}, directory_ + "/model"));
  ASSIGN_OR_RETURN(const std::string self, SiblingExecutable("stemma"));
  const std::vector<std::string> argv = {
      self,       "local",       "--model",      directory_ + "/model",   "--data",    directory_ + "/data",
      "--listen", "127.0.0.1:0", "--ready-file", directory_ + "/address", "--threads", "1",
      "--mesh",   MeshText(mesh)};
  ASSIGN_OR_RETURN(pid_, StartChild({.argv = argv}));
  return WaitForAddress(kReadyTimeout + NumRanks(mesh) * kReadyTimeoutOfRank);
}

absl::StatusOr<std::string> Sandbox::WaitForAddress(absl::Duration timeout) {
  for (absl::Duration waited; waited < timeout; waited += kPollInterval) {
    std::string address;
    std::ifstream file(directory_ + "/address");
    if (std::getline(file, address)) return address;
    int wait_status = 0;
    if (waitpid(pid_, &wait_status, WNOHANG) == pid_) {
      pid_ = -1;  // its number may be another process's from now on
      return absl::InternalError(absl::StrCat("`stemma local` ended with ", ExitText(wait_status)));
    }
    RealClock().Sleep(kPollInterval);
  }
  return absl::DeadlineExceededError("`stemma local` did not serve in time");
}

absl::Status Sandbox::Stop() {
  kill(pid_, SIGTERM);
  int wait_status = 0;
  waitpid(pid_, &wait_status, 0);
  pid_ = -1;
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("`stemma local` ended with ", ExitText(wait_status), " when told to stop"));
}

// One request of `learning_rate` under `schedule`; its only step.
absl::StatusOr<v1::StepResult> Step(Connection& connection, v1::Schedule schedule, double learning_rate) {
  ASSIGN_OR_RETURN(SyntheticTraceOptions options, TinyRequest());
  options.learning_rate = learning_rate;
  ASSIGN_OR_RETURN(v1::UpdateHeader header, SyntheticHeader(options));
  header.mutable_request()->set_request_id(absl::StrCat("doctor/", v1::Schedule_Name(schedule), "/", learning_rate));
  header.mutable_request()->set_schedule(schedule);
  ASSIGN_OR_RETURN(const auto groups, SyntheticGroups(options, header, 0));
  grpc::ClientContext context;
  SetTimeout(context, kStepTimeoutS);
  ASSIGN_OR_RETURN(const auto status, UpdateActor(connection.stub(), context, header, groups));
  RETURN_IF_ERROR(OutcomeStatus(status));
  if (status.result().steps_size() != 1) return absl::InternalError("the request did not make one step");
  return status.result().steps(0);
}

absl::Status CheckAgreement(const v1::StepResult& reuse, const v1::StepResult& dense) {
  for (const char* name : {"actor/loss", "actor/grad_norm"}) {
    const double a = reuse.metrics().at(name), b = dense.metrics().at(name);
    if (!(std::abs(a - b) <= kAgreement * std::max(1.0, std::abs(b)))) {
      return absl::InternalError(absl::StrFormat("%s is %.9g with reuse and %.9g dense", name, a, b));
    }
  }
  return absl::OkStatus();
}

Check LinkCheck(const MeshLink& link, const v1::ServerInfo& info) {
  Check check = {absl::StrCat("link ", std::string(link.axis)), CheckState::kFailed,
                 absl::StrCat("the server says nothing of the link between the ", link.ranks, " ranks")};
  for (const v1::LinkInfo& measured : info.links()) {
    if (measured.axis() != link.axis || measured.byte_s() <= 0) continue;
    check.state = CheckState::kOk;
    check.detail = absl::StrFormat("%d ranks: %.3g GB/s, %.3g us a message", measured.ranks(), 1e-9 / measured.byte_s(),
                                   1e6 * measured.message_s());
    check.numbers["ranks"] = measured.ranks();
    check.numbers["bytes_per_s"] = 1 / measured.byte_s();
    check.numbers["message_s"] = measured.message_s();
  }
  return check;
}

absl::StatusOr<std::vector<Check>> RunAll(const v1::Mesh& mesh) {
  Sandbox sandbox;
  ConnectionOptions server;
  ASSIGN_OR_RETURN(server.address, sandbox.Start(mesh));
  ASSIGN_OR_RETURN(auto connection, Connection::Open(server));
  ASSIGN_OR_RETURN(const auto info,
                   connection->Call(&v1::TrainingService::Stub::GetServerInfo, v1::GetServerInfoRequest()));
  ASSIGN_OR_RETURN(const auto reuse, Step(*connection, v1::REUSE, 0));
  ASSIGN_OR_RETURN(const auto dense, Step(*connection, v1::DENSE, 0));
  ASSIGN_OR_RETURN(const auto update, Step(*connection, v1::AUTO, 1e-4));
  RETURN_IF_ERROR(CheckAgreement(reuse, dense));
  v1::ExportWeightsRequest request;
  request.set_name("doctor");
  ASSIGN_OR_RETURN(const auto exported, connection->Call(&v1::TrainingService::Stub::ExportWeights, request));
  connection.reset();  // the server would wait for one on which nobody reads of its end
  RETURN_IF_ERROR(sandbox.Stop());
  std::vector<Check> checks = {
      {"self check", CheckState::kOk,
       absl::StrFormat("%d %s: reuse and dense agree (grad_norm %.6g), a step and an export of %d bytes done",
                       NumRanks(mesh), NumRanks(mesh) == 1 ? "rank" : "ranks", reuse.metrics().at("actor/grad_norm"),
                       exported.bytes())}};
  for (const MeshLink& link : LinksOf(mesh)) checks.push_back(LinkCheck(link, info));
  return checks;
}

}  // namespace

absl::Status CheckSelfCheckMesh(const v1::Mesh& mesh) {
  const absl::Status holds = CheckMesh(TinyModel(mesh), mesh);
  if (!holds.ok()) {
    return UsageError(absl::StrCat("--mesh ", MeshText(mesh),
                                   " cannot hold the tiny model of the self check: ", std::string(holds.message())));
  }
  const uint32_t ranks = NumRanks(mesh);
  if (ranks > kRanksOfMachineMax) {
    return UsageError(absl::StrCat("--mesh ", MeshText(mesh), " has ", ranks,
                                   " ranks, and `stemma doctor` starts a worker for each on this machine: at most ",
                                   kRanksOfMachineMax, "; give a smaller mesh"));
  }
  return absl::OkStatus();
}

std::vector<Check> SelfCheck(const v1::Mesh& mesh) {
  auto checks = RunAll(mesh);
  if (checks.ok()) return *std::move(checks);
  return {{"self check", CheckState::kFailed, ErrorText(checks.status())}};
}

}  // namespace stemma::cli
