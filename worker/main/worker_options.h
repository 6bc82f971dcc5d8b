// The command line of stemma-worker: where its server is. What to run, the server says.
#pragma once

#include <cstdint>
#include <string>

namespace stemma {

struct WorkerMainOptions {
  std::string server;    // host:port
  uint32_t threads = 0;  // of compute; 0: as the server says
  bool die_with_parent = false;
};

// False: the process is to end with exit_code, 0 after --help, 2 for a wrong command line.
bool ReadWorkerOptions(int argc, char** argv, WorkerMainOptions& options, int& exit_code);

}  // namespace stemma
