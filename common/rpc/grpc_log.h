// gRPC's own log.
#pragma once

namespace stemma {

// Keeps gRPC's lines for those who debug gRPC (VLOG(1)): what a user has to know comes back as a status, and is told in
// our words. Call it before the first channel or server.
void QuietGrpc();

}  // namespace stemma
