// Acceptor: takes connections for a gRPC server on a thread of its own, because gRPC's own listener (1.51) gives up for
// ever the first time that the process is out of file descriptors.
//
// The number of open connections has a bound, and some descriptors stay free for everything else: the kernel gives each
// socket the lowest free number, so a socket whose number is too high means that there are too many. It is closed at
// once, and its client tries again. When accepting fails, it is tried again a little later, whatever the cause.
//
// Thread safety: Open and AddTo before the server starts; then Start; Stop (idempotent) from any one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/unique_fd.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace stemma::server {

struct AcceptorOptions {
  std::string host;   // a name, IPv4, or IPv6 without brackets
  uint16_t port = 0;  // 0: any
  // The most connections of clients; some descriptors are kept free of them. 0: what the process may open is the only
  // bound, for listeners of our own processes, which must get through when clients have taken all that they may.
  uint64_t connections_max = 0;
  // The most connections of this listener, whatever the others have. 0: no such bound.
  uint64_t own_max = 0;
};

class Acceptor {
 public:
  // Listens on every address of `host`. Errors: Unavailable - none of them can be listened on, naming the address.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Open(const AcceptorOptions& options);
  ~Acceptor();

  uint16_t port() const { return port_; }  // in use
  // `credentials`: what a connection is to be encrypted with.
  void AddTo(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // Errors: FailedPrecondition - the process may open too few files to take one connection.
  absl::Status Start(const Clock& clock);
  // Accepts nothing more; the connections that there are go on.
  void Stop();

 private:
  // A connection that was accepted. gRPC closes it, and the descriptor may be another file's then: the inode tells.
  struct Connection {
    int fd = -1;
    ino_t inode = 0;
  };

  explicit Acceptor(const AcceptorOptions& options)
      : connections_max_(options.connections_max), own_max_(options.own_max) {}
  void Run(const Clock& clock);
  // False: accepting failed, and is to be tried again later.
  bool AcceptFrom(int listener);
  // Counts the connection in, or says that the listener has all that it may.
  bool CountIn(int fd);
  void Say(absl::Time now, const std::string& text);

  const uint64_t connections_max_, own_max_;
  uint16_t port_ = 0;
  int descriptor_max_ = 0;           // of a connection; set by Start
  std::string refusal_;              // what is said of a connection beyond that; set by Start
  UniqueFd wake_;                    // an eventfd that Stop writes
  std::vector<UniqueFd> listeners_;  // non-blocking
  std::vector<Connection> counted_;  // with own_max_: those that may be open
  std::string problem_;              // of the last connection that was not taken; empty: it was
  LogLimit log_limit_ = LogLimit(1);
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_;
  std::thread thread_;
};

}  // namespace stemma::server
