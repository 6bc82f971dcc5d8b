// gRPC's own log, and of it what an operator has to know.
#pragma once

#include <string>
#include <string_view>

namespace stemma {

// Keeps gRPC's lines for those who debug gRPC (VLOG(1)): what a user has to know comes back as a status, and is told in
// our words. Call it before the first channel or server.
void QuietGrpc();

// Does the same for a server, and logs why handshakes of TLS fail, which gRPC tells nobody else.
void QuietGrpcOfServer();

// Returns OpenSSL's reason in gRPC's line about a handshake that failed; "": the line is about something else, or has
// none.
std::string HandshakeFailure(std::string_view grpc_line);

// Logs why somebody was not let in; 20 lines in ten seconds at the most.
void LogRefusedHandshake(const std::string& why);

}  // namespace stemma
