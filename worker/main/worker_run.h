// What every worker process does after its options: one session, then an exit code. Shared by stemma-worker and by the
// worker of the tests.
#pragma once

#include "worker/main/worker_options.h"
#include "worker/rpc/engine_thread.h"

namespace stemma {

// 0: the server said Shutdown; 2: the model or configuration is refused; 1: anything else, start a new incarnation.
int RunWorker(const WorkerMainOptions& options, EngineFactory factory);

}  // namespace stemma
