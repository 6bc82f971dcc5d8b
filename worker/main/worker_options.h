// The command line of stemma-worker: where its server is. What to run, the server says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/device_name.h"
#include "common/base/logging.h"
#include "common/base/tls_files.h"
#include "worker/memory/device_memory.h"

namespace stemma::worker {

inline constexpr char kWorkerProgram[] = "stemma-worker";

// Set by a worker that starts itself anew, for the process that it becomes. A variable and no option: that may be
// another build, which refuses options that it does not know.
inline constexpr char kStartedAnewVariable[] = "STEMMA_WORKER_STARTED_ANEW";

struct WorkerMainOptions {
  std::string server;      // host:port
  std::string secret;      // admits this worker
  TlsFiles tls;            // none: plaintext; checked
  std::string build_id;    // of this program; empty: not known; no option, main says it
  DeviceName device;       // cpu:0
  std::string device_id;   // of the hardware, unlike any other's; empty: not known; no option, main says it
  std::string address;     // at which other workers reach this one; empty: found
  uint32_t threads = 0;    // of compute; 0: as the server says
  uint32_t cores = 0;      // that the compute may use; 0: not known; no option, main says it
  std::string core_group;  // the control group whose limit they are; empty: the machine's; likewise
  std::function<DeviceMemory()> device_memory = HostMemory;  // no option, main says it
  std::string ready_file;                                    // empty: none
  bool once = false;                                         // ends with its session
  bool started_anew = false;                                 // no option: this process had sessions before
  LogOptions log;
  std::vector<std::string> argv;  // as it was started
  bool die_with_parent = false;
  std::vector<const char*> open_variables;  // no option: of kToldVariables, which the environment leaves open
};

// Starts the log; removes kStartedAnewVariable. False: the process is to end with exit_code, 0 after --help, 2 for a
// wrong command line, or an --address that this host has not, or files of TLS that are not whole, where the process is
// no worker started anew: that one had them, and waits for them (RunSession).
bool ReadWorkerOptions(int argc, char** argv, WorkerMainOptions& options, int& exit_code);

// Says what is wrong with the value of an option, and returns the exit code.
int RefuseOption(const WorkerMainOptions& options, const char* option, const absl::Status& status);

}  // namespace stemma::worker
