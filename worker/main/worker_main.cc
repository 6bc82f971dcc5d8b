// stemma-worker: one process per rank. Exit codes: worker_run.h.
#include "worker/engine/engine.h"
#include "worker/main/worker_options.h"
#include "worker/main/worker_run.h"

int main(int argc, char** argv) {
  stemma::WorkerMainOptions options;
  int exit_code = 0;
  if (!stemma::ReadWorkerOptions(argc, argv, options, exit_code)) return exit_code;
  return stemma::RunWorker(options,
                           [&](const stemma::worker::v1::Configure& configure, const std::string& incarnation) {
                             stemma::worker::v1::Configure ours = configure;
                             if (options.threads > 0) ours.mutable_config()->set_threads(options.threads);
                             return stemma::CreateEngine(ours, incarnation);
                           });
}
