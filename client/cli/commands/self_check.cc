#include "client/cli/commands/self_check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/calls/submit.h"
#include "client/cli/local/child_process.h"
#include "client/cli/output/request_records.h"
#include "client/cli/trace/synthetic_trace.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/model/model_init.h"

namespace stemma::cli {
namespace {

constexpr absl::Duration kReadyTimeout = absl::Seconds(90);
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr double kAgreement = 1e-4;  // fp32 sums in another order differ by about 1e-6

ModelConfig TinyModel() {
  ModelConfig config;
  config.SetFamily(*FindFamily("qwen3"));
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_size = 16;
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
  options.vocab_size = TinyModel().vocab_size;
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

  absl::StatusOr<std::string> Start();
  absl::Status Stop();

 private:
  absl::StatusOr<std::string> WaitForAddress() const;

  std::string directory_;
  pid_t pid_ = -1;
};

absl::StatusOr<std::string> Sandbox::Start() {
  std::string directory = TemporaryRoot() + "/stemma-doctor-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return absl::InternalError(absl::StrCat("cannot create ", directory));
  directory_ = directory;
  RETURN_IF_ERROR(WriteRandomModel(TinyModel(), {.seed = 1}, directory_ + "/model"));
  ASSIGN_OR_RETURN(const std::string self, SiblingExecutable("stemma"));
  const std::vector<std::string> argv = {
      self,       "local",       "--model",      directory_ + "/model",   "--data",    directory_ + "/data",
      "--listen", "127.0.0.1:0", "--ready-file", directory_ + "/address", "--threads", "1"};
  ASSIGN_OR_RETURN(pid_, StartChild({.argv = argv}));
  return WaitForAddress();
}

absl::StatusOr<std::string> Sandbox::WaitForAddress() const {
  for (absl::Duration waited; waited < kReadyTimeout; waited += kPollInterval) {
    std::string address;
    std::ifstream file(directory_ + "/address");
    if (std::getline(file, address)) return address;
    int wait_status = 0;
    if (waitpid(pid_, &wait_status, WNOHANG) == pid_) {
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
  grpc::ClientContext context;
  ASSIGN_OR_RETURN(const auto status,
                   UpdateActor(connection.stub(), context, header, SyntheticGroups(options, header, 0)));
  RETURN_IF_ERROR(OutcomeStatus(status));
  if (status.result().steps_size() != 1) return absl::InternalError("the request did not make one step");
  return status.result().steps(0);
}

absl::StatusOr<std::string> RunAll() {
  Sandbox sandbox;
  ServerOptions server;
  ASSIGN_OR_RETURN(server.address, sandbox.Start());
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(server));
  ASSIGN_OR_RETURN(const auto reuse, Step(*connection, v1::REUSE, 0));
  ASSIGN_OR_RETURN(const auto dense, Step(*connection, v1::DENSE, 0));
  ASSIGN_OR_RETURN(const auto update, Step(*connection, v1::AUTO, 1e-4));
  for (const char* name : {"actor/loss", "actor/grad_norm"}) {
    const double a = reuse.metrics().at(name), b = dense.metrics().at(name);
    if (!(std::abs(a - b) <= kAgreement * std::max(1.0, std::abs(b)))) {
      return absl::InternalError(absl::StrFormat("%s is %.9g with reuse and %.9g dense", name, a, b));
    }
  }
  v1::ExportWeightsRequest request;
  request.set_name("doctor");
  ASSIGN_OR_RETURN(const auto exported, connection->Call(&v1::TrainingService::Stub::ExportWeights, request));
  RETURN_IF_ERROR(sandbox.Stop());
  return absl::StrFormat("reuse and dense agree (grad_norm %.6g), a step and an export of %d bytes done",
                         reuse.metrics().at("actor/grad_norm"), exported.bytes());
}

}  // namespace

Check SelfCheck() {
  const auto detail = RunAll();
  if (detail.ok()) return {"self check", CheckState::kOk, *detail};
  return {"self check", CheckState::kFailed, ErrorText(detail.status())};
}

}  // namespace stemma::cli
