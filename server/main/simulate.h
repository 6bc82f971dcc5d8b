// `stemma-server simulate`: what Simulate() says of a trace on some meshes, as one JSON object on stdout. The client's
// side is client/cli/commands/simulate_command.cc.
#pragma once

namespace stemma::server {

inline constexpr char kSimulate[] = "simulate";

// Returns the process's exit code: 0 with an answer, whether a mesh is possible or not; 2 where an option, a file or
// the trace is wrong, with `problems` in the object.
int SimulateMain(int argc, char** argv);

}  // namespace stemma::server
