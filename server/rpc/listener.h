// One port with one service behind it: a gRPC server of its own, so that no other service answers there and its limits
// are its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/tls_files.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/acceptor.h"

namespace stemma::server {

struct ListenerOptions {
  HostPort address;
  // Not owned, outlive the listener. One of both: gRPC opens no port for health alone, so a listener without a service
  // of its own has `nothing`, which answers every call with UNIMPLEMENTED.
  grpc::Service* service = nullptr;
  grpc::CallbackGenericService* nothing = nullptr;
  uint64_t connections_max = 0;  // open at a time; 0: what the process may open
  uint64_t own_max = 0;          // of this listener alone; 0: no such bound (AcceptorOptions)
  int message_bytes_max = 0;     // of one received message
  int streams_max = 0;           // calls at a time of one connection
  bool health = false;           // grpc.health.v1.Health
  bool reflection = false;       // lists `service`; each open call of it is a thread
  int idle_ms_max = 0;           // a connection without calls is closed after so long; 0: it stays
  TlsFiles tls = {};             // none: plaintext
};

struct Listener {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;  // stopped before the server is
  std::string address;                 // with the port in use
};

// Errors: Unavailable - the address cannot be opened; FailedPrecondition - too few files may be.
absl::StatusOr<Listener> Listen(const ListenerOptions& options, const Clock& clock);

}  // namespace stemma::server
