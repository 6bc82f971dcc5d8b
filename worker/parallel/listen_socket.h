// A listening socket on one address and no other: c10d's own store would listen on all interfaces.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/address.h"
#include "common/base/unique_fd.h"

namespace stemma::worker {

class ListenSocket {
 public:
  // Binds and listens. The host is an IP literal or `localhost` (127.0.0.1); port 0: any free one.
  // Errors: InvalidArgument - a name, which might mean several addresses; Unavailable - the address cannot be bound.
  static absl::StatusOr<ListenSocket> Open(const HostPort& address);

  const HostPort& address() const { return address_; }  // with the port in use
  // Gives the descriptor away.
  int Release() { return descriptor_.Release(); }

 private:
  ListenSocket(UniqueFd descriptor, HostPort address);

  UniqueFd descriptor_;
  HostPort address_;
};

// The host as an IP literal. Errors: InvalidArgument - a name.
absl::StatusOr<std::string> NumericHost(const std::string& host);

}  // namespace stemma::worker
