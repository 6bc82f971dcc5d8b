#include "worker/main/worker_run.h"

#include <unistd.h>

#include <iostream>
#include <random>

#include "absl/strings/str_format.h"
#include "common/process.h"
#include "glog/logging.h"
#include "worker/rpc/session.h"

namespace stemma {
namespace {

std::string RandomIncarnation() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

}  // namespace

int RunWorker(const WorkerMainOptions& options, EngineFactory factory) {
  if (options.die_with_parent) DieWithParent(getppid());
  const absl::Status status =
      RunSession({.server = options.server, .incarnation = RandomIncarnation()}, std::move(factory));
  if (status.ok()) return 0;
  std::cerr << "stemma-worker: " << status.message() << "\n";
  const bool cannot_run_here =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsResourceExhausted(status);
  return cannot_run_here ? 2 : 1;
}

}  // namespace stemma
