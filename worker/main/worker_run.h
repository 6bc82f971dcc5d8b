// What every worker process does after its options: sessions, one after the other, or one (--once). Shared by
// stemma-worker and by the worker of the tests.
//
// A session's end is the end of all that the process held: it starts itself anew (exec, under its pid), so that nothing
// of an earlier session, a wave that still runs included, can reach into a later one. It takes along stdin, stdout and
// stderr, and no other descriptor.
#pragma once

#include "worker/engine/engine.h"
#include "worker/main/worker_options.h"

namespace stemma::worker {

// Returns when this worker cannot serve: 2 - the model or configuration is refused, 1 - another fault. With `once` also
// when the session is over: 0 - the server said Shutdown, 1 - it was lost, start a new incarnation.
int RunWorker(const WorkerMainOptions& options, EngineFactory factory);

}  // namespace stemma::worker
