#include "worker/main/worker_options.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/command_line_options.h"
#include "common/base/option_checks.h"
#include "common/base/parse_options.h"
#include "common/base/ready_file.h"
#include "common/base/status_macros.h"
#include "common/base/tls_options.h"
#include "common/base/worker_secret.h"
#include "common/base/worker_version.h"
#include "common/rpc/tls_check.h"
#include "worker/parallel/cuda_environment.h"
#include "worker/rpc/own_address.h"

namespace stemma::worker {
namespace {

absl::Status OfOption(const char* option, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", std::string(status.message())));
}

absl::StatusOr<std::string> ReadSecret(const std::string& file) {
  if (!file.empty()) return ReadWorkerSecret(file);
  const char* variable = std::getenv(kWorkerSecretVariable);
  if (variable == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no secret: give --worker-secret-file FILE, the server's, or set ", kWorkerSecretVariable));
  }
  const absl::StatusOr<std::string> secret = WorkerSecretOf(variable);
  return secret.ok() ? secret : OfOption(kWorkerSecretVariable, secret.status());
}

// Tells whether this process started itself anew. Asked once: its children did not.
bool TakeStartedAnew() {
  const bool started_anew = std::getenv(kStartedAnewVariable) != nullptr;
  unsetenv(kStartedAnewVariable);
  return started_anew;
}

// The options' texts.
struct OptionTexts {
  std::string server, secret_file, device = "cpu";
};

// Fills in what the text of the options says. Errors name the option.
absl::Status Resolve(const OptionTexts& texts, WorkerMainOptions& options) {
  const absl::StatusOr<HostPort> server = ParseDialAddress(texts.server);
  if (!server.ok()) return OfOption("--server", server.status());
  options.server = server->Text();
  const absl::StatusOr<DeviceName> device = ParseDevice(texts.device);
  if (!device.ok()) return OfOption("--device", device.status());
  options.device = *device;
  if (!options.address.empty()) {
    absl::Status own = CheckOwnAddress(options.address);
    if (own.ok() && !options.started_anew) own = CheckAddressIsHere(options.address);
    if (!own.ok()) return OfOption("--address", own);
  }
  ASSIGN_OR_RETURN(options.secret, ReadSecret(texts.secret_file));
  // One that started itself anew had them, and waits for them, as for the address.
  if (!options.started_anew) {
    RETURN_IF_ERROR(CheckTlsFiles(options.tls, TlsSide::kClient, RealClock().Now()).status());
  }
  return options.ready_file.empty() ? absl::OkStatus() : ReadyFile::Clear(options.ready_file);
}

}  // namespace

bool ReadWorkerOptions(int argc, char** argv, WorkerMainOptions& options, int& exit_code) {
  CLI::App app("A worker of Stemma: holds the model, computes updates for one server.", "stemma-worker");
  SetHelpStyle(app);
  app.set_version_flag("--version", WorkerVersion());
  OptionTexts texts;
  app.add_option("--server", texts.server, "host:port of stemma-server's --worker-listen")->required();
  app.add_option("--worker-secret-file", texts.secret_file,
                 "file of mode 0600 with the server's secret (default: $STEMMA_WORKER_SECRET)");
  AddClientTlsOptions(&app, options.tls);
  app.add_option("--device", texts.device,
                 "cpu:K for worker K of this host's CPUs, cuda:K for its GPU K (default cpu:0)");
  app.add_option("--address", options.address,
                 "IP at which the other workers of the mesh reach this one; only they may be able to (default: the one "
                 "that it reaches the server from)");
  app.add_option("--threads", options.threads, "of compute (default: as the server says)")
      ->check(Whole(0, UINT32_MAX), "");
  app.add_option("--ready-file", options.ready_file, "written once the model is loaded: the server's address");
  app.add_flag("--once", options.once,
               "end with the session instead of waiting for the server's return, with an exit code "
               "for a supervisor: 0 told to, 1 start me again, 2 configuration");
  AddLogOptions(&app, options.log);
  app.add_flag("--die-with-parent", options.die_with_parent, "end when the starting process ends");
  if (const std::optional<int> parsed = ParseOptions(app, argc, argv)) {
    exit_code = *parsed;
    return false;
  }
  StartLogging(kWorkerProgram, options.log);
  options.started_anew = TakeStartedAnew();
  options.argv.assign(argv, argv + argc);
  std::copy_if(std::begin(kToldVariables), std::end(kToldVariables), std::back_inserter(options.open_variables),
               [](const char* name) { return std::getenv(name) == nullptr; });
  if (const absl::Status status = Resolve(texts, options); !status.ok()) {
    Say(kWorkerProgram, options.log, LogLevel::kError, std::string(status.message()));
    exit_code = 2;
    return false;
  }
  return true;
}

int RefuseOption(const WorkerMainOptions& options, const char* option, const absl::Status& status) {
  Say(kWorkerProgram, options.log, LogLevel::kError, std::string(OfOption(option, status).message()));
  return 2;
}

}  // namespace stemma::worker
