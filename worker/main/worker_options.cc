#include "worker/main/worker_options.h"

#include "CLI/CLI.hpp"

namespace stemma {

bool ReadWorkerOptions(int argc, char** argv, WorkerMainOptions& options, int& exit_code) {
  CLI::App app("A worker of Stemma: holds the model, computes updates for one server.");
  app.set_version_flag("--version", STEMMA_VERSION);
  app.add_option("--server", options.server, "host:port of stemma-server")->required();
  app.add_option("--threads", options.threads, "of compute (default: as the server says)");
  app.add_flag("--die-with-parent", options.die_with_parent, "end when the starting process ends");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  return true;
}

}  // namespace stemma
