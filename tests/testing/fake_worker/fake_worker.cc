// stemma-worker with the fake engine: the process tests' worker that hangs or dies where it is told to.
#include "tests/testing/fake_worker/fake_engine.h"
#include "worker/main/worker_options.h"
#include "worker/main/worker_run.h"

int main(int argc, char** argv) {
  stemma::worker::WorkerMainOptions options;
  int exit_code = 0;
  if (!stemma::worker::ReadWorkerOptions(argc, argv, options, exit_code)) return exit_code;
  return stemma::worker::RunWorker(options, stemma::testing::CreateFakeEngine);
}
