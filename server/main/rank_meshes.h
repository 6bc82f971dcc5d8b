// `stemma-server rank-meshes`: what RankMeshes() says of a trace, as one JSON object on stdout. The client's side is
// client/cli/commands/mesh_command.cc.
#pragma once

namespace stemma::server {

inline constexpr char kRankMeshes[] = "rank-meshes";

// Returns the process's exit code: 0 with an answer, whether a mesh is possible or not; 2 where an option, a file or
// the trace is wrong, with `problems` in the object.
int RankMeshesMain(int argc, char** argv);

}  // namespace stemma::server
