// The worker's stream to its server: registers, hands messages to the engine thread, sends its answers and a heartbeat
// every second. One stream is one incarnation: when it ends, so does the process.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/rpc/engine_thread.h"

namespace stemma {

struct SessionOptions {
  std::string server;       // host:port
  std::string incarnation;  // random for each process
};

// Blocks until the session ends. OK: the server said Shutdown. Else why: the stream was lost or refused (Unavailable,
// or the server's own code), or the engine could not be created (its status; InvalidArgument and NotFound are the
// configuration's fault).
//
// The engine may still be inside a wave when this returns an error: the process then has to end without unwinding.
absl::Status RunSession(const SessionOptions& options, EngineFactory factory);

}  // namespace stemma
