// stemma-worker: one process per rank. Exit codes: worker_run.h.
#include <memory>

#include "common/base/descriptors.h"
#include "common/base/open_ssl.h"
#include "common/base/process.h"
#include "worker/backend/build_id.h"
#include "worker/engine/open_device.h"
#include "worker/engine/rank_engine.h"
#include "worker/main/worker_options.h"
#include "worker/main/worker_run.h"

int main(int argc, char** argv) {
  stemma::OpenStandardDescriptors();
  stemma::KeepOpenSslAtExit();
  stemma::EndAtSignalsAsFirstProcess();
  stemma::worker::WorkerMainOptions options;
  int exit_code = 0;
  if (!stemma::worker::ReadWorkerOptions(argc, argv, options, exit_code)) return exit_code;
  const absl::StatusOr<std::unique_ptr<stemma::worker::Device>> device = stemma::worker::OpenDevice(options.device);
  if (!device.ok()) return stemma::worker::RefuseOption(options, "--device", device.status());
  options.build_id = stemma::worker::OwnBuildId();
  options.device_id = (*device)->id();
  options.cores = stemma::worker::ComputeCores();
  options.core_group = stemma::worker::ComputeCoreGroup();
  options.device_memory = [&] { return (*device)->memory(); };
  return stemma::worker::RunWorker(
      options, [&](const stemma::internal::v1::Configure& configure, const stemma::worker::WorkerIdentity& identity,
                   const stemma::worker::TellStore& tell) {
        stemma::internal::v1::Configure ours = configure;
        if (options.threads > 0) ours.mutable_config()->set_threads(options.threads);
        return stemma::worker::CreateEngine(**device, ours, identity, tell);
      });
}
