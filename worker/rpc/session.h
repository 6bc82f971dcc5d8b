// The worker's stream to its server: registers, hands messages to the engine thread, sends its answers and a heartbeat
// every second. One stream is one incarnation: when it ends, so does the process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/tls_files.h"
#include "worker/engine/engine.h"
#include "worker/memory/device_memory.h"

namespace stemma::worker {

struct SessionOptions {
  std::string server;           // host:port of the server's worker listener
  std::string secret;           // the server's
  std::string incarnation;      // random for each process
  std::string address;          // IP literal at which other ranks reach this one; empty: found
  std::string device;           // "cpu:0"
  std::string build_id = {};    // of this program; empty: not known
  std::string device_id = {};   // of the hardware, unlike any other's; empty: not known
  uint32_t cores = 0;           // that the compute may use; 0: not known
  std::string core_group = {};  // the control group whose limit they are; empty: the machine's
  std::function<DeviceMemory()> device_memory = HostMemory;
  // The model is loaded; an error ends the session with it.
  std::function<absl::Status()> on_ready = [] { return absl::OkStatus(); };
  TlsFiles tls = {};  // none: plaintext
};

// How a session ended.
struct SessionEnd {
  // OK: the server said Shutdown. Else why: Unavailable - the stream was lost, the server has no place for this worker
  // now, another rank has gone, or this one's device failed; the engine's status, where it could not be created
  // (InvalidArgument, NotFound and ResourceExhausted are the configuration's fault). Where the server refused this
  // worker for good: InvalidArgument - it takes no workers at this address; ResourceExhausted - it did before the model
  // was loaded, as for its secret; FailedPrecondition - for the weights that it loaded.
  absl::Status status;
  // The engine is inside a wave, or in a generation that lost a rank: the process has to end, or be replaced, without
  // unwinding.
  bool engine_left = false;
};

// Waits for the files of TLS to be whole, for the server, and for `address` where this host has it not any more,
// however long; a line in the log says so. Then blocks until the session ends.
SessionEnd RunSession(const SessionOptions& options, EngineFactory factory);

}  // namespace stemma::worker
